"""Translution of depth 1 on Moving MNIST (Fan 2025); sweep(): against the Transformer, at depths of 1 to 6.

python -m posattn_jax.main --config=configs/translution_moving_mnist.py:quick --workdir=runs/NAME
Hardware and time: not run; :quick an estimated hour of one CPU core. Expected test accuracy: not known; .442 +- .035 in
three seeds after 4 epochs (25 minutes each), see translution.py.
"" (30 epochs), :quick (10 epochs), :tiny (tests).
"""

from ml_collections import ConfigDict

from configs import common_vit
from posattn_jax.analysis.plan import Plan
from posattn_jax.build.parts import change


def get_config(variant: str = "") -> ConfigDict:
    return change(common_vit.get_config("mnist", variant), common_vit.MOVING)


def sweep(variant: str = "") -> Plan:
    return common_vit.depth_sweep("Moving MNIST")
