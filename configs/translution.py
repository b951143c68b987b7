"""Is Translution better than the Transformer at depth 1, and more so if digits move? (Fan 2025, Figures 4 and 5.)

python -m posattn_jax.main --config=configs/translution.py:quick --mode=sweep --workdir=runs/NAME \
    --config.data.dir=FOLDER
FOLDER has MNIST's and CIFAR-10's official files. Moving MNIST is one still digit a canvas.
The tokens' mean is classified, not a class token, and Translution has no absolute positions, which the paper does not
say; the Transformer that it is compared with has them (docs/differences.md).
Hardware and time: :quick 2 CPU cores, 90 minutes (2.8 hours of runs). Expected test accuracy after the last epoch,
means of 5, 5 and 3 seeds: MNIST .956 (Transformer .939), CIFAR-10 .480 (.444), Moving MNIST .442 (.294).
"" (30 epochs), :quick (10 epochs; Moving MNIST 4), :tiny (tests).
"""

from ml_collections import ConfigDict

from configs.lib import common_vit
from posattn_jax.analysis.plan import Hypothesis, Plan, Treatment


def get_config(variant: str = "") -> ConfigDict:
    return common_vit.get_config("mnist", variant)


def sweep(variant: str = "") -> Plan:
    treatments, hypotheses = [], []
    for data, label, seeds in (("mnist", "MNIST", 5), ("cifar10", "CIFAR-10", 5), ("moving_mnist", "Moving MNIST", 3)):
        fields = dict(common_vit.MOVING)
        if data != "moving_mnist":
            fields = {"data.name": data, "model.patch_shape": (common_vit.PATCH[data],) * 2}
        elif variant == "quick":
            fields |= {"train.total_epochs": 4.0, "optimizer.schedule.warmup_epochs": 1.0}
        treatments += [
            Treatment(f"{data}_transformer", f"{label}: Transformer", fields | common_vit.TRANSFORMER, num_seeds=seeds),
            Treatment(f"{data}_translution", f"{label}: Translution", fields, num_seeds=seeds),
        ]
        claim = f"{label}: Translution gives a higher accuracy than the Transformer"
        hypotheses.append(Hypothesis(claim, f"{data}_translution", f"{data}_transformer", "greater"))
    claim = "The difference between the two is larger on Moving MNIST than on MNIST"
    moving, fixed = (hypotheses[i] for i in (2, 0))
    than = (fixed.treatment, fixed.control)
    hypotheses.append(Hypothesis(claim, moving.treatment, moving.control, "greater", than=than))
    return Plan(
        "Is Translution above the Transformer at a depth of 1, and more so where digits move?",
        tuple(treatments),
        tuple(hypotheses),
        epoch="last",
        source="Fan 2025",
    )
