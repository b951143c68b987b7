"""Read from a class token or from the mean, both with absolute positions: is Translution above the Transformer? (MNIST)

python -m posattn_jax.main --config=configs/studies/question_pooling.py:quick --mode=sweep --workdir=runs/NAME \
    --config.data.dir=FOLDER
Fan 2025 reads a class token and does not say whether Translution keeps absolute positions; the authors' later code
drops them by default. configs/studies/question_translution.py is that other reading, at depth 1.
Hardware and time: :quick one CPU core, 60 runs, 9.5 hours in all (next to other work). Expected test accuracy at depths
1, 2, 3: class token .852, .968, .975 (Transformer .867, .961, .971), mean .966, .977, .980 (.939, .961, .972).
"" (30 epochs), :quick (10 epochs), :tiny (tests); with :deep the sweep has the class token alone, at depths 1 to 6, and
mnist, cifar10 or cifar100 are the data, as in :quick,deep,cifar10 (not run yet). Of :quick,deep,mnist depths 4, 5, 6
have run on an H100, 30 runs in 9.5 minutes next to others: .977, .979, .980 (Transformer .973, .975, .976).
"""

from ml_collections import ConfigDict

from configs.lib import common_vit
from posattn_jax.analysis.plan import Hypothesis, Plan, Treatment

POOLINGS = {"class": "class token", "mean": "mean"}


TITLES = {"mnist": "MNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}


def get_config(variant: str = "") -> ConfigDict:
    rest = [word for word in variant.split(",") if word not in (*TITLES, "deep")]
    return common_vit.get_config(_data(variant), ",".join(rest))


def _data(variant: str) -> str:
    return next((word for word in variant.split(",") if word in TITLES), "mnist")


def sweep(variant: str = "") -> Plan:
    treatments, hypotheses = [], []
    is_deep = "deep" in variant.split(",")
    question = "in both: is Translution above the Transformer, by pooling and depth?"
    if is_deep:
        question = (
            f"and a class token in both: is Translution above the Transformer on {TITLES[_data(variant)]}, by depth?"
        )
    for depth in range(1, 7) if is_deep else (1, 2, 3):
        for pooling, words in list(POOLINGS.items())[: 1 if is_deep else None]:
            fields = {"model.absolute_positions": True, "model.pooling": pooling, "model.num_blocks": depth}
            names = [f"{model}_{pooling}_{depth}" for model in ("transformer", "translution")]
            treatments += [
                Treatment(names[0], f"Transformer, {words}, depth {depth}", {common_vit.VALUES: None} | fields),
                Treatment(names[1], f"Translution, {words}, depth {depth}", fields),
            ]
            claim = f"Read from the {words}, at a depth of {depth}, Translution gives a higher accuracy"
            hypotheses.append(Hypothesis(claim, names[1], names[0], "greater"))
    return Plan(
        f"With absolute positions {question}",
        tuple(treatments),
        tuple(hypotheses),
        epoch="last",
        axis="model.num_blocks",
        source="Fan 2025, section 5.1 and Figure 4",
    )
