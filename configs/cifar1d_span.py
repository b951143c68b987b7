"""Sequential CIFAR-10, SIREN and a learned span with threshold .1 (Alfons 2022, Table 7).

python -m posattn_jax.main --config=configs/cifar1d_span.py --workdir=runs/NAME --config.data.dir=FOLDER
Hardware and time: one GPU (the paper: 30 to 40 hours on a Titan RTX). Expected best-epoch validation accuracy, as the
paper's mean and standard deviation of five seeds: .717 +- .018. Not yet reproduced here at full size.
:quick (8x8, 3 blocks), :half (16x16), :tiny (tests): smaller variants of the same.
"""

from ml_collections import ConfigDict

from configs import common


def get_config(variant: str = "") -> ConfigDict:
    config = common.get_config()
    config.data.layout = "1d"
    return common.apply_variant(config, variant)
