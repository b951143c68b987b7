"""Translution of depth 1 on CIFAR-100, read from the mean (after Fan 2025); sweep(): at depths of 1 to 6.

python -m posattn_jax.main --config=configs/translution_cifar100.py:quick --workdir=runs/NAME --config.data.dir=FOLDER
The tokens' mean is classified, not a class token, and Translution has no absolute positions, which the paper does not
say (docs/differences.md). sweep() compares it with the Transformer, which has them.
Hardware and time: not run; :quick an estimated 3 minutes of one CPU core. Expected: not known.
"" (30 epochs), :quick (10 epochs), :tiny (tests).
"""

from ml_collections import ConfigDict

from configs.lib import common_vit
from posattn_jax.analysis.plan import Plan


def get_config(variant: str = "") -> ConfigDict:
    return common_vit.get_config("cifar100", variant)


def sweep(variant: str = "") -> Plan:
    return common_vit.depth_sweep("CIFAR-100")
