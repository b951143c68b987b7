"""General Translution on clouds of points: the ink of MNIST's digits, up to 128 pixels each (Fan 2025, equation 6).

python -m posattn_jax.main --config=configs/translution_points.py:quick --workdir=runs/NAME --config.data.dir=FOLDER
The points' mean is classified. f is linear in the features, and its matrices depend on the displacement by a SIREN;
there are no absolute positions.
Hardware and time: :quick not run as a whole. Expected test accuracy after the last epoch: not known.
"" (30 epochs), :quick (2 epochs), :tiny (tests).
"""

from ml_collections import ConfigDict

from configs.lib import common_vit
from posattn_jax.config.parts import change, part
from posattn_jax.data.images.image_sets import PointClouds


def get_config(variant: str = "") -> ConfigDict:
    config = common_vit.get_config("mnist", variant)
    config.data = part(PointClouds, name="mnist", validation="test")
    config.model.patch_shape = (1,)
    change(config, {common_vit.VALUES: common_vit.general(hidden_features=32)})
    if variant == "quick":
        config.train.total_epochs = 2.0
        config.optimizer.schedule.warmup_epochs = 0.5
    return config
