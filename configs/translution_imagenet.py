"""A vision transformer of ImageNet's size, ViT-S with low-rank Translution, on 64x64 images.

python -m posattn_jax.main --config=configs/translution_imagenet.py --workdir=runs/NAME --config.data.dir=FOLDER
... --config.data.name=tfds/imagenet_resized/64x64 --config.data.validation=split: as tfds has prepared it
FOLDER has ImageNet's three zips of 64x64 images, which `python launch/prepare.py imagenet64 FOLDER` verifies.
The patches' mean is classified, and there are no absolute positions.
Hardware and time: not trained (2 updates of 4 made images run on 2 CPU cores); 20 GB of host memory for the images.
Expected: not known.
"" (16 x 16 patches of 4 x 4), :full (a matrix for every displacement, 1.7 billion parameters), :tiny (tests).
"""

from ml_collections import ConfigDict

from configs.lib import common_vit
from posattn_jax import LowRankTranslution, Translution
from posattn_jax.config.parts import change, part


def get_config(variant: str = "") -> ConfigDict:
    config = common_vit.get_config("cifar10", "tiny" if variant == "tiny" else "")
    config.data.name = "imagenet64"
    config.model.update(patch_shape=(4, 4), num_blocks=12, width=384, dtype="bfloat16", remat=True, scan_layers=True)
    config.model.block.mlp_dim = 1536
    config.model.block.attention.update(num_heads=6, use_output=True)
    change(config, {common_vit.VALUES: part(LowRankTranslution, down_dim=64, rank=8)})
    config.train.update(batch_size=1024, total_epochs=300.0)
    config.optimizer.update(learning_rate=1e-3, clip_norm=1.0)
    config.optimizer.schedule.warmup_epochs = 10.0
    match variant:
        case "":
            pass
        case "full":
            change(config, {common_vit.VALUES: part(Translution)})
        case "tiny":
            config.model.update(num_blocks=2, width=8)
            config.model.block.mlp_dim = 16
            config.model.block.attention.num_heads = 2
            change(config, {f"{common_vit.VALUES}.down_dim": 4, f"{common_vit.VALUES}.rank": 2})
            config.train.update(total_epochs=0.0, total_steps=2, batch_size=8)
        case _:
            raise ValueError(f'translution_imagenet variant "{variant}": expected none, "full" or "tiny"')
    return config
