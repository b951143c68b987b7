"""A vision transformer of ImageNet's size, ViT-S with low-rank Translution, on 64x64 images that tfds has prepared.

python -m posattn_jax.main --config=configs/translution_imagenet.py --workdir=runs/NAME --config.data.dir=FOLDER
Hardware and time: not trained (2 updates of 4 made images run on 2 CPU cores); 16 GB of host memory for the images.
Expected: not known.
"" (16 x 16 patches of 4 x 4), :full (a matrix for every displacement, 1.7 billion parameters), :tiny (tests).
"""

from ml_collections import ConfigDict

from configs import common_vit


def get_config(variant: str = "") -> ConfigDict:
    config = common_vit.get_config("cifar10", "tiny" if variant == "tiny" else "")
    config.data.name = "tfds/imagenet_resized/64x64"
    config.data.validation = "split"
    config.model.update(patch_shape=(4, 4), num_blocks=12, num_heads=6, width=384, mlp_dim=1536, use_output=True)
    config.model.update(dtype="bfloat16", remat=True, scan_layers=True)
    config.model.value.update(kind="low_rank", down_dim=64, rank=8)
    config.train.update(batch_size=1024, total_epochs=300.0)
    config.optimizer.update(learning_rate=1e-3, warmup_epochs=10.0, clip_norm=1.0)
    match variant:
        case "":
            pass
        case "full":
            config.model.value.kind = "translution"
        case "tiny":
            config.model.update(num_blocks=2, num_heads=2, width=8, mlp_dim=16)
            config.model.value.update(down_dim=4, rank=2)
            config.train.update(total_epochs=0.0, total_steps=2, batch_size=8)
        case _:
            raise ValueError(f'translution_imagenet variant "{variant}": expected none, "full" or "tiny"')
    return config
