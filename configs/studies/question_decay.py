"""Is a decay with distance better if its rates are learned than with the given rates of ALiBi? (Ours; LearnedDecay.)

python -m posattn_jax.main --config=configs/studies/question_decay.py --mode=sweep --workdir=runs/NAME --workers=2
Hardware and time: 6 minutes of one CPU core. Expected mean accuracy of three seeds: a learned decay .29,
ALiBi .49, no positions .23 (`docs/results/question_decay/report.md`).
The weights of head h are multiplied by exp(-a_h |s - t|), a_h trained from .1: `posattn_jax/nn/biases.py`.
"" (digits, the backbone of configs/compare.py, which has no other positions), :tiny (tests).
"""

from ml_collections import ConfigDict

from configs import compare
from configs.lib import common
from posattn_jax import Content, LearnedDecay, LinearBias
from posattn_jax.analysis.plan import PAPER_SEEDS, Hypothesis, Plan, Treatment
from posattn_jax.config.parts import change, part


def get_config(variant: str = "") -> ConfigDict:
    terms = {"content": part(Content), "decay": part(LearnedDecay)}
    return change(compare.get_config(variant), {common.TERMS: terms})


def sweep(variant: str = "") -> Plan:
    alibi = {"content": part(Content), "linear_bias": part(LinearBias)}
    return Plan(
        "Does a decay with distance do better where its rate is learned?",
        (
            Treatment("none", "no positions", {common.TERMS: {"content": part(Content)}}),
            Treatment("alibi", "ALiBi", {common.TERMS: alibi}),
            Treatment("decay", "learned decay"),
        ),
        (
            Hypothesis("A learned decay gives a higher accuracy than ALiBi", "decay", "alibi", "greater"),
            Hypothesis("ALiBi gives a higher accuracy than no positions", "alibi", "none", "greater"),
        ),
        seeds=PAPER_SEEDS[:3],
    )
