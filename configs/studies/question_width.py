"""Does it matter that the width of a span is learned, on digits? (Ours.)

python -m posattn_jax.main --config=configs/studies/question_width.py --mode=sweep --workdir=runs/question_width
Hardware and time: 40 runs of 1.5 to 2 minutes of a CPU core. Expected accuracy, ten seeds: .981, without learning .977.
The ramps of configs/digits.py:short_span start at 3 places and ended at 2.9 on average (2.1 to 4.1 by head and
dimension), so a ramp that stays at 3 has their mean width. That a ramp is not worse than a window of 2 places to each
side was shown before (docs/results/digits_short_span); windows of 1 and 3 are the next smaller and larger.
"" (digits), :tiny (tests).
"""

from ml_collections import ConfigDict

from configs import digits
from configs.lib import common
from posattn_jax.analysis.plan import Hypothesis, Plan, Treatment
from posattn_jax.config.parts import change


def get_config(variant: str = "") -> ConfigDict:
    return change(digits.get_config(variant), common.learned_ramp(digits.RAMP_WIDTH))


def sweep(variant: str = "") -> Plan:
    ramp, _, *windows = common.ramp_and_rivals(digits.RAMP_WIDTH, 1, 3)
    # All updates together change a width by less than 1e-6 of it.
    stays = Treatment("stays", "ramp that stays at 3 places", ramp.fields | {"optimizer.span_learning_rate": 1e-9})
    return Plan(
        "Does it matter that the width of a span is learned?",
        (ramp, stays, *windows),
        (
            Hypothesis("A ramp is better than one that stays at the mean of its widths", "ramp", "stays", "greater"),
            Hypothesis("A ramp is not worse than a window of 1 by .01", "ramp", "window_1", "greater", margin=0.01),
            Hypothesis("A ramp is not worse than a window of 3 by .01", "ramp", "window_3", "greater", margin=0.01),
        ),
        seeds=tuple(range(6, 16)),
    )
