"""CIFAR-10 in two dimensions, SIREN, a learned Gaussian without mask (Alfons 2022, Tables 6 and 7).

python -m posattn_jax.main --config=configs/cifar2d_span_nothreshold.py --workdir=runs/NAME --config.data.dir=FOLDER
Hardware and time: one GPU (the paper: 30 to 40 hours on a Titan RTX). Expected best-epoch validation accuracy, as the
paper's mean and standard deviation of five seeds: .803 +- .016. Not yet reproduced here at full size.
:quick (8x8, 3 blocks), :half (16x16), :tiny (tests): smaller variants of the same.
"""

from ml_collections import ConfigDict

from configs import common


def get_config(variant: str = "") -> ConfigDict:
    config = common.get_config()
    config.model.block.attention.span.threshold = 0.0
    return common.apply_variant(config, variant)
