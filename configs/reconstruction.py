"""How much of the sinusoidal baseline's E can a SIREN fit? (Proposed in Alfons 2022, section 6.)

python -m posattn_jax.main --config=configs/reconstruction.py --workdir=runs/reconstruction
... --mode=sweep --workdir=runs/reconstruction_sweep: other omegas, depths and widths, 13 treatments x 5 seeds
The first command fits one SIREN of the paper's size.
Hardware and time: a minute of one CPU core, two with 256 units; the sweep 1.2 core hours. Expected: best-epoch
explained share of E's variation .65 (n = 5); by omega 0 to .76, by depth .42 to .85, by width .51 to .86.
1,024 positions in one dimension, all offsets both for training and for validation. This is evaluated every 10 epochs,
since an evaluation takes longer than an epoch. :tiny (tests).
"""

from ml_collections import ConfigDict

from configs.lib import common
from posattn_jax import Siren
from posattn_jax.analysis.plan import Hypothesis, Plan, Treatment
from posattn_jax.config.parts import part
from posattn_jax.tasks.reconstruction import EncodingOffsets, Reconstruction


def get_config(variant: str = "") -> ConfigDict:
    config = common.get_config()
    config.data = part(EncodingOffsets, grid_shape=(1024,), features=64)
    config.task = part(Reconstruction)
    config.model = part(Siren, param_dtype="float32")
    config.train.update(total_epochs=1000.0, batch_size=64, accumulation_steps=1, eval_batch_size=2048, eval_steps=310)
    if variant == "tiny":
        config.data.features = 8
        config.train.update(total_epochs=0.0, total_steps=2, eval_steps=0)
        config.data.grid_shape = (4, 4)
        config.train.batch_size = 16
    elif variant:
        raise ValueError(f'reconstruction variant "{variant}": expected none or "tiny"')
    return config


def sweep(variant: str = "") -> Plan:
    omegas = [common.same_omegas(f"omega_{omega:g}", omega, "model") for omega in (0.3, 1.0, 3.0, 30.0, 100.0, 300.0)]
    depths = [Treatment(f"depth_{n}", f"{n} layers", {"model.num_layers": n}) for n in (2, 4, 5)]
    widths = [Treatment(f"width_{n}", f"{n} units a layer", {"model.hidden_features": n}) for n in (16, 32, 256)]
    treatments = (Treatment("paper", "3 layers of 64, omegas 10"), *omegas, *depths, *widths)
    return Plan(
        "How much of the sinusoidal baseline's E can a SIREN fit, by width, depth and omega?",
        treatments,
        tuple(
            Hypothesis(f"{treatment.label}: another share of E than the paper's SIREN", treatment.name, "paper")
            for treatment in treatments[1:]
        ),
        response="explained",
    )
