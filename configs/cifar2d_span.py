"""CIFAR-10 in two dimensions, SIREN and a learned span with threshold .1 (Alfons 2022, Table 7).

python -m posattn_jax.main --config=configs/cifar2d_span.py --workdir=runs/NAME --config.data.dir=FOLDER
Hardware and time: one GPU (the paper: 30 to 40 hours on a Titan RTX). Expected best-epoch validation accuracy, as the
paper's mean and standard deviation of five seeds: .810 +- .004. Not yet reproduced here at full size.
:quick (8x8, 3 blocks): two CPU cores, 13 minutes, .56 (seed 9188).  :half (16x16), :tiny (tests).
--mode=sweep trains the paper's seven treatments. With :quick these are 49 runs
(12 minutes on an H200: docs/results.md).
"""

from ml_collections import ConfigDict

from configs.lib import common
from posattn_jax.analysis.plan import Plan


def get_config(variant: str = "") -> ConfigDict:
    return common.apply_variant(common.get_config(), variant)


def sweep(variant: str = "") -> Plan:
    return common.span_paper_sweep(num_seeds=12 if variant == "quick" else 5)
