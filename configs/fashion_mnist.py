"""Translution of depth 1 on Fashion-MNIST (Xiao, Rasul and Vollgraf 2017), whose files are in MNIST's format.

python -m posattn_jax.main --config=configs/fashion_mnist.py:quick --workdir=runs/NAME --config.data.download=True
The patches' mean is classified, and there are no absolute positions.
Hardware and time: as configs/translution.py:mnist (:quick 3 minutes of one CPU core); not run here, because its
files are not at hand. Expected test accuracy: not known. FOLDER of --config.data.dir=FOLDER has the official idx files,
gzipped or not, or has them in FOLDER/fashion_mnist or FOLDER/FashionMNIST/raw.
"" (30 epochs), :quick (10 epochs), :tiny (tests).
"""

from ml_collections import ConfigDict

from configs.lib import common_vit


def get_config(variant: str = "") -> ConfigDict:
    config = common_vit.get_config("mnist", variant)
    config.data.name = "fashion_mnist"
    return config
