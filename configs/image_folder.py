"""Your own images: a folder of PNG, JPEG or WebP files for each class; docs/data.md has the formats.

python -m posattn_jax.main --config=configs/image_folder.py --workdir=runs/NAME --config.data.dir=FOLDER
... --mode=evaluate; python -m posattn_jax.main --mode=predict --workdir=runs/NAME IMAGE ...
Hardware and time: depend on your data. With scikit-learn's digits as PNG files (1,437 for training), one of the 30
epochs took 14 to 41 s on 2 CPU cores that other work mostly used. Expected with these after 8 epochs: .96 to .98 (one
run).
"" (64 x 64 pixels in colour, in patches of 8 x 8; set data.height, data.width, data.channels and model.patch_shape to
change that), :from=RUN (starts from that run, such as an imported vision transformer, with its model and its pixels:
docs/weights.md), :tiny (tests).
"""

from ml_collections import ConfigDict

from configs.lib import common
from posattn_jax import VisionTransformer
from posattn_jax.config.parts import change, part
from posattn_jax.data.images.image_folder import ImageFolder
from posattn_jax.train.optimizer import Adam
from posattn_jax.train.schedule import Cosine


def get_config(variant: str = "") -> ConfigDict:
    config = common.get_config()
    config.data = part(ImageFolder)
    config.model = patches(config.model, (8, 8))
    set_training(config)
    if variant.startswith("from="):
        config.task.pretrained = variant.removeprefix("from=")
        start = common.of_run(config.task.pretrained)
        config.data, config.model = start.data, change(start, {"model.num_classes": None}).model
        config.optimizer.learning_rate = 1e-4
    elif variant == "tiny":
        config.data.update(height=8, width=8)
        config.model.patch_shape = (4, 4)
        make_tiny(config)
    elif variant:
        raise ValueError(f'image_folder variant "{variant}": expected none, "from=RUN" or "tiny"')
    return config


def patches(classifier: ConfigDict, patch_shape: tuple[int, ...]) -> ConfigDict:
    """A vision transformer of patches with the classifier's SIREN encoding and learned span."""
    return part(
        VisionTransformer,
        width=classifier.width,
        num_blocks=4,
        block=classifier.block,
        patch_shape=patch_shape,
        pooling="mean",
        absolute_positions=False,
        dtype="float32",
        param_dtype="float32",
    )


def set_training(config: ConfigDict) -> None:
    """Sets a recipe for a few hundred to a few ten thousand examples."""
    config.train.update(total_epochs=30.0, batch_size=32, accumulation_steps=1)
    config.optimizer = part(Adam, learning_rate=1e-3, schedule=part(Cosine, warmup_epochs=1.0), clip_norm=1.0)


def make_tiny(config: ConfigDict) -> None:
    """Makes the config tiny, for tests."""
    config.model.update(width=8, num_blocks=1)
    config.model.block.attention.num_heads = 2
    config.model.block.mlp_dim = 16
    config.train.update(total_epochs=0.0, total_steps=2, batch_size=8)
    config.optimizer.schedule.warmup_epochs = 0.0
