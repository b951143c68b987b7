"""By how much is a digit rotated? Self-supervised (Gidaris 2018): the labels of the data are not used.

python -m posattn_jax.main --config=configs/rotation.py --workdir=runs/rotation
Hardware and time: 2 CPU cores, minutes (run next to other work, not timed). Expected best-epoch validation accuracy:
.754 (seed 9188, still rising after the last epoch; chance: .25).
"" (digits, SIREN and learned span, 5 epochs), :tiny (tests).
"""

from ml_collections import ConfigDict

from configs import digits
from posattn_jax.config.parts import part
from posattn_jax.tasks.rotation import Rotation


def get_config(variant: str = "") -> ConfigDict:
    config = digits.get_config(variant)
    config.task = part(Rotation)
    if not variant:
        config.train.total_epochs = 5.0
    return config
