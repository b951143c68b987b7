"""How much do a SIREN's frequencies and initialisation matter? (Alfons 2022, section 6.) Sequential images, no span.

python -m posattn_jax.main --config=configs/studies/question_siren.py:digits --mode=sweep --workdir=runs/question_siren
Hardware and time: :digits 16 treatments x 5 seeds, about an hour of one core. Expected, in the paper (CIFAR-10):
accuracies from .46 to .74 if both omegas are the same, from .57 to .70 if only the initial one changes. On digits: .60
to .97 and .60 to .98 (docs/results/question_siren).
"" (CIFAR-10 at 32x32), :half (16x16), :quick (8x8, 3 blocks), :digits, :tiny (tests).
"""

from ml_collections import ConfigDict

from configs.lib import common
from posattn_jax.analysis.plan import Hypothesis, Plan, Treatment
from posattn_jax.config.parts import change

SIREN = common.ENCODING
OMEGAS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


def get_config(variant: str = "") -> ConfigDict:
    config = common.apply_variant(common.get_config(), variant)
    config.data.layout = "1d"
    change(config, common.NO_SPAN)
    return config


def sweep(variant: str = "") -> Plan:
    both = [common.same_omegas(f"both_{omega:g}", omega) for omega in OMEGAS]
    initial = [
        Treatment(
            f"initial_{omega:g}",
            f"omega 1, initial omega {omega:g}",
            {f"{SIREN}.omega": 1.0, f"{SIREN}.omega_initial": omega},
        )
        for omega in OMEGAS
        if omega != 1.0  # both_1
    ]
    options = [
        Treatment("ckconv", "both 10, CKConv biases", {f"{SIREN}.bias_init": "ckconv"}),
        Treatment("learned", "both 10, learned omegas", {f"{SIREN}.learn_omega": True}),
        Treatment(
            "ckconv_learned",
            "both 10, CKConv biases, learned omegas",
            {f"{SIREN}.bias_init": "ckconv", f"{SIREN}.learn_omega": True},
        ),
    ]
    treatments = (*both, *initial, *options)
    return Plan(
        "How much hangs on a SIREN's frequencies and their initialisation?",
        treatments,
        tuple(
            Hypothesis(
                f"{treatment.label}: another accuracy than with the paper's choice, 10", treatment.name, "both_10"
            )
            for treatment in treatments
            if treatment.name != "both_10"
        ),
    )
