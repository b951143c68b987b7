"""Your own arrays: series, images or volumes with labels in .npz files; docs/data.md has the formats.

python -m posattn_jax.main --config=configs/arrays.py --workdir=runs/NAME --config.data.dir=FILE_OR_FOLDER
... --mode=evaluate; python -m posattn_jax.main --mode=predict --workdir=runs/NAME FILE.npz
Hardware and time: depend on your data. With scikit-learn's digits in one file (1,437 for training): 3 CPU minutes (12
minutes on 2 cores that other work mostly used). Expected best-epoch validation accuracy with these: .989 (one run).
"" (each position of the grid is a token), :patches (of 4 x 4 x 4 positions; set model.patch_shape to one size for each
side of your arrays), :tiny (tests).
"""

from ml_collections import ConfigDict

from configs import image_folder
from configs.lib import common
from posattn_jax.config.parts import part
from posattn_jax.data.images.arrays import Arrays


def get_config(variant: str = "") -> ConfigDict:
    config = common.get_config()
    config.data = part(Arrays)
    config.model.update(num_blocks=3, pooling="mean")
    image_folder.set_training(config)
    if variant == "tiny":
        image_folder.make_tiny(config)
    elif variant == "patches":
        config.model = image_folder.patches(config.model, (4, 4, 4))
    elif variant:
        raise ValueError(f'arrays variant "{variant}": expected none, "patches" or "tiny"')
    return config
