"""Which positions carry over to a grid twice as large? Trained on pooled images, evaluated on twice their resolution.

python -m posattn_jax.main --config=configs/studies/question_grid.py:digits --mode=sweep --workdir=runs/question_grid
Hardware and time: :digits 4 treatments x 5 seeds, 11 minutes of one CPU core. Expected, :digits: .10 to .18 on the
larger grid, where chance is .10. No span is shown to help.
"" (CIFAR-10, 16x16 and then 32x32), :quick and :digits (4x4 and then 8x8, 3 blocks), :tiny (tests).
"""

from ml_collections import ConfigDict

from configs.lib import common
from posattn_jax import SinusoidalEncoding
from posattn_jax.analysis.plan import Hypothesis, Plan, Treatment
from posattn_jax.config.parts import part


def get_config(variant: str = "") -> ConfigDict:
    config = common.apply_variant(common.get_config(), variant)
    config.data.pool *= 2
    return config


def sweep(variant: str = "") -> Plan:
    sinusoids = {common.ENCODING: part(SinusoidalEncoding)}
    span = "{}: with a learned span the accuracy on the larger grid is higher"
    return Plan(
        "Which positions carry over to a grid twice as large?",
        (
            Treatment("sinusoids", "sinusoids", sinusoids | common.NO_SPAN),
            Treatment("sinusoids_span", "sinusoids, span", sinusoids),
            Treatment("siren", "SIREN", common.NO_SPAN),
            Treatment("siren_span", "SIREN, span"),
        ),
        (
            Hypothesis(span.format("Sinusoids"), "sinusoids_span", "sinusoids", "greater"),
            Hypothesis(span.format("SIREN"), "siren_span", "siren", "greater"),
            Hypothesis("SIREN and sinusoids differ on the larger grid", "siren", "sinusoids"),
        ),
        evaluate={"data.pool": get_config(variant).data.pool // 2},
    )
