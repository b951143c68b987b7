"""How do a class token, more layers, and a span change Translution (Fan 2025), on MNIST?

python -m posattn_jax.main --config=configs/studies/question_translution.py:quick --mode=sweep --workdir=runs/NAME \
    --config.data.dir=FOLDER
Hardware and time: :quick 2 CPU cores, 40 minutes. Expected test accuracy after the last epoch: .956; with a span
.952, low rank .944, general .932; with a class token .679 (Transformer .871); at depth 3 .980 (.969).
"" (30 epochs), :quick (10 epochs), :tiny (tests).
"""

from ml_collections import ConfigDict

from configs.lib import common, common_vit
from posattn_jax import GaussianSpan, LowRankTranslution
from posattn_jax.analysis.plan import Hypothesis, Plan, Treatment
from posattn_jax.config.parts import part

TRANSFORMER, VALUES = common_vit.TRANSFORMER, common_vit.VALUES


def get_config(variant: str = "") -> ConfigDict:
    return common_vit.get_config("mnist", variant)


def sweep(variant: str = "") -> Plan:
    read_class, deep = {"model.pooling": "class"}, {"model.num_blocks": 3}
    near = {f"{VALUES}.half_span": (1, 1), common.SPAN: part(GaussianSpan)}
    return Plan(
        "What do a class token, more layers and a span change about Translution?",
        (
            Treatment("translution", "Translution"),
            Treatment("span", "Translution within a learned span, at most 1 patch", near),
            Treatment("low_rank", "Translution of rank 8", {VALUES: part(LowRankTranslution)}),
            Treatment("general", "General Translution, 8 matrices", {VALUES: common_vit.general()}),
            Treatment("transformer_class", "Transformer, class token", TRANSFORMER | read_class),
            Treatment("translution_class", "Translution, class token", read_class),
            Treatment("transformer_3", "Transformer, depth 3", TRANSFORMER | deep, num_seeds=1),
            Treatment("translution_3", "Translution, depth 3", deep, num_seeds=1),
        ),
        (
            Hypothesis("Within a span Translution gives a lower accuracy", "span", "translution", "less"),
            Hypothesis("With rank 8 Translution gives a lower accuracy", "low_rank", "translution", "less"),
            Hypothesis("With 8 matrices Translution gives a lower accuracy", "general", "translution", "less"),
            Hypothesis(
                "Read from a class token, Translution gives a lower accuracy than the Transformer",
                "translution_class",
                "transformer_class",
                "less",
            ),
            Hypothesis(
                "Read from a class token, Translution gives a lower accuracy than read from the mean",
                "translution_class",
                "translution",
                "less",
            ),
        ),
        seeds=(9188, 2755, 361),
        epoch="last",
        source="Fan 2025",
    )
