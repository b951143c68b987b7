"""Does Translution recognise digits where none was seen in training? On MNIST (Fan 2025, Figure 2).

python -m posattn_jax.main --config=configs/studies/question_halves.py:quick --mode=sweep --workdir=runs/NAME \
    --config.data.dir=FOLDER
Training digits lie anywhere in the left half of a canvas of 64 x 64 pixels, and test digits in the right half. Depth 1.
Hardware and time: :quick one CPU core, 9 runs, 1.4 hours. Expected test accuracy after the last epoch, means of three
seeds: Transformer .170, Translution .255, Transformer without positions .374.
"" (30 epochs), :quick (4 epochs), :tiny (tests).
"""

from ml_collections import ConfigDict

from configs.lib import common_vit
from posattn_jax.analysis.plan import PAPER_SEEDS, Hypothesis, Plan, Treatment
from posattn_jax.config.parts import change, part
from posattn_jax.data.images.moving_mnist import Stills

HALVES = common_vit.MOVING | {"data.scene": part(Stills, shift="halves")}


def get_config(variant: str = "") -> ConfigDict:
    config = change(common_vit.get_config("mnist", variant), HALVES)
    if variant == "quick":
        config.train.total_epochs = 4.0
        config.optimizer.schedule.warmup_epochs = 1.0
    return config


def sweep(variant: str = "") -> Plan:
    without = common_vit.TRANSFORMER | {"model.absolute_positions": False}
    return Plan(
        "Does Translution recognise digits where none was seen in training?",
        (
            Treatment("transformer", "Transformer", common_vit.TRANSFORMER),
            Treatment("translution", "Translution", {}),
            Treatment("bare", "Transformer without positions", without),
        ),
        (
            Hypothesis(
                "In the half without training digits, Translution gives a higher accuracy than the Transformer",
                "translution",
                "transformer",
                "greater",
            ),
            Hypothesis(
                "In the half without training digits, Translution gives a higher accuracy than no positions",
                "translution",
                "bare",
                "greater",
            ),
        ),
        seeds=PAPER_SEEDS[:3],
        epoch="last",
        source="Fan 2025, Figure 2",
    )
