"""Translution of depth 1 on Moving MNIST, read from the mean (after Fan 2025); sweep(): at depths of 1 to 6.

python -m posattn_jax.main --config=configs/translution_moving_mnist.py:quick --workdir=runs/NAME \
    --config.data.dir=FOLDER
FOLDER has MNIST's files. An image is one still digit at a random place of a canvas of 64 x 64 pixels.
The tokens' mean is classified, not a class token, and Translution has no absolute positions, which the paper does not
say (docs/differences.md). sweep() compares it with the Transformer, which has them.
Hardware and time: not run; :quick an estimated hour of one CPU core. Expected test accuracy: not known; .442 +- .035 in
three seeds after 4 epochs (25 minutes each), see translution.py.
"" (30 epochs), :quick (10 epochs), :tiny (tests).
"""

from ml_collections import ConfigDict

from configs.lib import common_vit
from posattn_jax.analysis.plan import Plan
from posattn_jax.config.parts import change


def get_config(variant: str = "") -> ConfigDict:
    return change(common_vit.get_config("mnist", variant), common_vit.MOVING)


def sweep(variant: str = "") -> Plan:
    return common_vit.depth_sweep("Moving MNIST")
