"""Read from a class token or from the mean, both with absolute positions: is Translution above the Transformer? (MNIST)

python -m posattn_jax.main --config=configs/question_pooling.py:quick --mode=sweep --workdir=runs/NAME \
    --config.data.dir=FOLDER
Fan 2025 reads a class token and does not say whether Translution keeps absolute positions; the authors' later code
drops them by default. configs/question_translution.py is that other reading, at depth 1.
Hardware and time: :quick one CPU core, 60 runs, 9.5 hours in all (beside other work). Expected test accuracy at depths
1, 2, 3: class token .852, .968, .975 (Transformer .867, .961, .971), mean .966, .977, .980 (.939, .961, .972).
"" (30 epochs), :quick (10 epochs), :tiny (tests).
"""

from ml_collections import ConfigDict

from configs import common_vit
from posattn_jax.analysis.plan import Hypothesis, Plan, Treatment

POOLINGS = {"class": "class token", "mean": "mean"}


def get_config(variant: str = "") -> ConfigDict:
    return common_vit.get_config("mnist", variant)


def sweep(variant: str = "") -> Plan:
    treatments, hypotheses = [], []
    for depth in (1, 2, 3):
        for pooling, words in POOLINGS.items():
            fields = {"model.absolute_positions": True, "model.pooling": pooling, "model.num_blocks": depth}
            names = [f"{model}_{pooling}_{depth}" for model in ("transformer", "translution")]
            treatments += [
                Treatment(names[0], f"Transformer, {words}, depth {depth}", {common_vit.VALUES: None} | fields),
                Treatment(names[1], f"Translution, {words}, depth {depth}", fields),
            ]
            claim = f"Read from the {words}, at a depth of {depth}, Translution gives a higher accuracy"
            hypotheses.append(Hypothesis(claim, names[1], names[0], "greater"))
    return Plan(
        "With absolute positions in both: is Translution above the Transformer, by pooling and depth?",
        tuple(treatments),
        tuple(hypotheses),
        epoch="last",
        axis="model.num_blocks",
        source="Fan 2025, section 5.1 and Figure 4",
    )
