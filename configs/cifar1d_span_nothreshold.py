"""Sequential CIFAR-10, SIREN, scores modulated by a learned Gaussian, no mask (Alfons 2022, Tables 6 and 7).

python -m posattn_jax.main --config=configs/cifar1d_span_nothreshold.py --workdir=runs/NAME --config.data.dir=FOLDER
Hardware and time: one GPU (the paper: 30 to 40 hours on a Titan RTX). Expected best-epoch validation accuracy, as the
paper's mean and standard deviation of five seeds: .709 +- .022. Not yet reproduced here at full size.
:quick (8x8, 3 blocks), :half (16x16), :tiny (tests): smaller variants of the same.
"""

from ml_collections import ConfigDict

from configs import common


def get_config(variant: str = "") -> ConfigDict:
    config = common.get_config()
    config.data.layout = "1d"
    config.model.block.attention.span.threshold = 0.0
    return common.apply_variant(config, variant)
