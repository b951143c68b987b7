"""Which way does the digit move? Clips of Moving MNIST, in three dimensions, with SIREN encodings and a learned span.

python -m posattn_jax.main --config=configs/moving_clips.py:quick --workdir=runs/NAME --config.data.dir=FOLDER
... --mode=sweep --config=configs/moving_clips.py:quick --workdir=runs/NAME    (does a learned span pay in 3-D?)
Hardware and time: :quick not run as a whole; 600 updates of its sweep took 10 and 23 minutes of a CPU core, and
reached .28 with a Gaussian, .49 without a span; later .18 with a ramp, .70 without. Expected best-epoch
validation accuracy: not known (chance: .125).
"" (8 frames of 16x16), :quick (8 frames of 8x8, 2 blocks, 2 epochs), :translution (a vision transformer, patches of
2 x 8 x 8), :translution_quick (2 epochs), :tiny (tests).
"""

from ml_collections import ConfigDict

from configs.lib import common, common_vit
from posattn_jax import GaussianSpan
from posattn_jax.analysis.plan import PAPER_SEEDS, Hypothesis, Plan, Treatment
from posattn_jax.config.parts import change, part
from posattn_jax.data.images.moving_mnist import Clips


def get_config(variant: str = "") -> ConfigDict:
    match variant:
        case "" | "quick" | "tiny":
            config = common.apply_variant(common.get_config(), "tiny" if variant == "tiny" else "")
            config.data.pool = {"": 4, "quick": 8, "tiny": 32}[variant]
            if variant == "quick":
                config.model.num_blocks = 2
                config.train.total_epochs = 2.0
        case "translution" | "translution_quick":
            config = common_vit.get_config("mnist", "quick" if variant == "translution_quick" else "")
            config.model.patch_shape = (2, 8, 8)
            change(config, {f"{common_vit.VALUES}.half_span": (3, 2, 2)})
            if variant == "translution_quick":
                config.train.total_epochs = 2.0
                config.optimizer.schedule.warmup_epochs = 0.5
        case _:
            raise ValueError(
                f'moving_clips variant "{variant}": expected none, "quick", "translution", "translution_quick" or '
                '"tiny"'
            )
    return change(config, {"data.name": "mnist", "data.scene": part(Clips), "data.layout": "3d"})


def sweep(variant: str = "") -> Plan:
    """SIREN encodings with spans that start small, against no span. All pool by the mean of all positions.

    A ramp starts at 3 places of the 8 of a side in "quick": 125 of 512 positions, where the window is not cut off.
    """
    mean = {"model.pooling": "mean"}
    span = part(GaussianSpan, initial_sigma=0.13, mode="log_add", per_head=True)
    return Plan(
        "Does a learned span pay on clips, in three dimensions?",
        (
            Treatment("learned", "learned span", mean | {common.SPAN: span, "optimizer.span_learning_rate": 5e-4}),
            Treatment("ramp", "ramp", mean | common.learned_ramp(3 / 7)),
            Treatment("none", "no span", mean | common.NO_SPAN),
        ),
        (
            Hypothesis("A learned span is not worse than none by .02", "learned", "none", "greater", margin=0.02),
            Hypothesis("A ramp is not worse than none by .02", "ramp", "none", "greater", margin=0.02),
        ),
        seeds=PAPER_SEEDS[:3],
    )
