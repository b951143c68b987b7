"""CIFAR-10 in two dimensions with spans that start short, one per head: does a learned span pay on images? (Ours.)

python -m posattn_jax.main --config=configs/cifar2d_short_span.py:half --workdir=runs/NAME --config.data.dir=FOLDER
... --mode=sweep --config=configs/cifar2d_short_span.py:half --workdir=runs/NAME    (against no span)
Hardware and time: :half takes half an hour of a CPU core, and 55 minutes without a span; 32x32 an estimated 4.4 hours,
and 14 without a span. Expected validation accuracy of :half: .54 to .55, and .54 to .60 without a span
(docs/results/cifar_short_span). Of 32x32 after an hour: .44, and .36 without (docs/results/cifar_short_span_full);
on an H200 with implementation fused after 1 epoch, in about a minute: .44 (docs/notes.md).
"" (32x32), :half (16x16, 3 blocks), :quick (8x8, 3 blocks), :tiny (tests); all but the last train for 5 epochs.
With "half,forms" the sweep compares a ramp without a penalty with windows and with no span: 20 and 33 minutes of a core
for a ramp and no span, .55 to .59 and .56 to .58 (docs/results/cifar_short_span_forms).
"""

from ml_collections import ConfigDict

from configs.lib import common
from posattn_jax import GaussianSpan
from posattn_jax.analysis.plan import PAPER_SEEDS, Hypothesis, Plan, Treatment
from posattn_jax.config.parts import change, part

RAMP_WIDTH = 0.2  # 3 of the 15 places of :half; a weight of 1 up to 2 places, so the keys of a window of 2


def get_config(variant: str = "") -> ConfigDict:
    variant = variant.removesuffix(",forms")
    config = common.apply_variant(common.get_config(), variant)
    span = part(GaussianSpan, initial_sigma=0.05, mode="log_add", per_head=True)
    change(config, {common.SPAN: span, "task.span_penalty": 0.1, "optimizer.span_learning_rate": 1e-4})
    config.model.pooling = "mean"  # with "last", short spans would have to carry everything to the last position
    if variant == "half":
        config.model.num_blocks = 3  # so that three pairs of runs take hours, and not a day, on a CPU
    if variant != "tiny":
        config.train.total_epochs = 5.0
    return config


def sweep(variant: str = "") -> Plan:
    """The short span against no span. With "forms": a ramp against windows and against no span."""
    if variant.endswith(",forms"):
        return forms()
    return Plan(
        "Does a learned span pay on images, in two dimensions?",
        (Treatment("learned", "learned span"), Treatment("none", "no span", common.NOT_TRAINED | common.NO_SPAN)),
        (Hypothesis("A learned span is not worse than none by .01", "learned", "none", "greater", margin=0.01),),
        seeds=PAPER_SEEDS[:3],
    )


def forms() -> Plan:
    """A ramp against no span and windows."""
    return Plan(
        "Is a learned ramp as good as no span on images, and as the best window?",
        common.ramp_and_rivals(RAMP_WIDTH, 2, 3),
        (
            Hypothesis("A ramp is not worse than no span by .01", "ramp", "none", "greater", margin=0.01),
            Hypothesis("A ramp is not worse than a window of 2 by .01", "ramp", "window_2", "greater", margin=0.01),
            Hypothesis("A ramp is not worse than a window of 3 by .01", "ramp", "window_3", "greater", margin=0.01),
        ),
        seeds=PAPER_SEEDS,
    )
