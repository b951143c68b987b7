"""Sequential CIFAR-10, sinusoids and a linear layer, no span: the baseline (Alfons 2022, Table 5).

python -m posattn_jax.main --config=configs/cifar1d_baseline.py --workdir=runs/NAME --config.data.dir=FOLDER
Hardware and time: one GPU (the paper: 30 to 40 hours on a Titan RTX). Expected best-epoch validation accuracy, as the
paper's mean and standard deviation of five seeds: .749 +- .011. Not yet reproduced here at full size.
:quick (8x8, 3 blocks), :half (16x16), :tiny (tests): smaller variants of the same.
"""

from ml_collections import ConfigDict

from configs import common
from posattn_jax import SinusoidalEncoding
from posattn_jax.build.parts import change, part


def get_config(variant: str = "") -> ConfigDict:
    config = common.get_config()
    config.data.layout = "1d"
    change(config, {common.ENCODING: part(SinusoidalEncoding)} | common.NO_SPAN)
    return common.apply_variant(config, variant)
