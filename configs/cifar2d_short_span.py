"""CIFAR-10 in two dimensions with spans that start short, one per head: does a learned span pay on images? (Ours.)

python -m posattn_jax.main --config=configs/cifar2d_short_span.py:half --workdir=runs/NAME --config.data.dir=FOLDER
... --mode=sweep --config=configs/cifar2d_short_span.py:half --workdir=runs/NAME    (against no span)
Hardware and time: :half takes half an hour of a CPU core, and 55 minutes without a span; 32x32 an estimated 4.4 hours,
and 14 without a span. Expected validation accuracy of :half: .54 to .55, and .54 to .60 without a span
(docs/results/cifar_short_span). Of 32x32 after an hour: .44, and .36 without (docs/results/cifar_short_span_full);
on an H200 with implementation fused after 1 epoch, in about a minute: .44 (docs/gpu.md).
"" (32x32), :half (16x16, 3 blocks), :quick (8x8, 3 blocks), :tiny (tests); all but the last train for 5 epochs.
"""

from ml_collections import ConfigDict

from configs.lib import common
from posattn_jax import GaussianSpan
from posattn_jax.analysis.plan import PAPER_SEEDS, Hypothesis, Plan, Treatment
from posattn_jax.config.parts import change, part


def get_config(variant: str = "") -> ConfigDict:
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
    without = common.NO_SPAN | {"task.span_penalty": 0.0, "optimizer.span_learning_rate": 0.0}
    return Plan(
        "Does a learned span pay on images, in two dimensions?",
        (Treatment("learned", "learned span"), Treatment("none", "no span", without)),
        (Hypothesis("A learned span is not worse than none by .01", "learned", "none", "greater", margin=0.01),),
        seeds=PAPER_SEEDS[:3],
    )
