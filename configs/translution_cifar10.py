"""Translution of depth 1 on CIFAR-10, read from the mean (after Fan 2025); sweep(): at depths of 1 to 6.

python -m posattn_jax.main --config=configs/translution_cifar10.py:quick --workdir=runs/NAME --config.data.dir=FOLDER
The tokens' mean is classified, not a class token, and Translution has no absolute positions, which the paper does not
say (docs/differences.md). sweep() compares it with the Transformer, which has them.
Hardware and time: :quick one CPU core, 3 minutes. Expected test accuracy after the last epoch: .480 +- .005 (n = 5).
"" (30 epochs), :quick (10 epochs), :tiny (tests).
"""

from ml_collections import ConfigDict

from configs.lib import common_vit
from posattn_jax.analysis.plan import Plan


def get_config(variant: str = "") -> ConfigDict:
    return common_vit.get_config("cifar10", variant)


def sweep(variant: str = "") -> Plan:
    return common_vit.depth_sweep("CIFAR-10")
