"""Which form of a learned span: diagonal or full covariance, which start, which effect? (Alfons 2022, section 8.)

python -m posattn_jax.main --config=configs/studies/question_span.py:digits --mode=sweep --workdir=runs/question_span
Hardware and time: :digits 5 treatments x 5 seeds, 1.4 hours of a CPU core that other work shared. Expected, :digits:
.979 to .984, no treatment shown to differ. The paper starts from sigma .3 and says that this covers everything, but
that needs .466.
"" (CIFAR-10 at 32x32), :half (16x16), :quick (8x8, 3 blocks), :digits, :tiny (tests).
"""

from ml_collections import ConfigDict

from configs.lib import common
from posattn_jax.analysis.plan import Hypothesis, Plan, Treatment


def get_config(variant: str = "") -> ConfigDict:
    return common.apply_variant(common.get_config(), variant)


def sweep(variant: str = "") -> Plan:
    return Plan(
        "Which form of a learned span is best?",
        (
            Treatment("paper", "diagonal, sigma .3, multiplied"),
            Treatment("full", "full covariance", {f"{common.SPAN}.covariance": "full"}),
            Treatment("everything", "initial sigma .466", {f"{common.SPAN}.initial_sigma": 0.466}),
            Treatment("log_add", "ln G added to the scores", {f"{common.SPAN}.mode": "log_add"}),
            Treatment("per_head", "a span for every head", {f"{common.SPAN}.per_head": True}),
        ),
        (
            Hypothesis("A span with a full covariance gives a higher accuracy", "full", "paper", "greater"),
            Hypothesis("To start from a span over everything gives another accuracy", "everything", "paper"),
            Hypothesis("Far keys that fade to nothing, not to score 0, give another accuracy", "log_add", "paper"),
            Hypothesis("A span for every head gives a higher accuracy", "per_head", "paper", "greater"),
        ),
    )
