"""Word order of any text: is a sentence as written, are two neighbouring words swapped, or is it shuffled?

python launch/english_text.py FROM data/english   (what FROM holds: see there; or any text, a sentence a line)
python -m posattn_jax.main --config=configs/word_order.py:composite --workdir=runs/NAME \
    --config.data.dir=data/english/train --config.data.validation_dir=data/english/validation
python -m posattn_jax.main --config=configs/word_order.py --mode=sweep --workdir=runs/word_order ...
python -m posattn_jax.main --config=configs/word_order.py:from=runs/imported --mode=sweep --workdir=runs/NAME ...
    adds parts to the model of that run, for example of an imported one, which do not change its function at first.
Hardware and time: one CPU core; a run takes 8 minutes, the sweep of 18 runs 2.4 hours; with MiniLM (22.7 million
    parameters) a run takes 3 to 4 minutes, its 21 runs 1.2 hours. Expected validation accuracy: none and fixed 1 / 3,
    absolute .61, rposnet .62, composite .62 to .76, dynamic .67 to .75 (docs/word_order.md); with MiniLM .79, also
    with parts added, and 1 / 3 without positions (docs/grafts.md).
composite (also ""), none, absolute, fixed, dynamic, rposnet; other mixers, with absolute positions: aposnet, shaw,
relative, lightconv, lightconv_gelu, glinear, gaussian; from=RUN; tiny (tests). The sweep of the variant mixers compares
four of these with attention (15 runs, 2 hours; .60 to .66).
"""

from typing import Any

from ml_collections import ConfigDict

from configs.lib import common, common_bert, common_grafts
from configs.lib.common_mixers import mixing
from posattn_jax.analysis.plan import PAPER_SEEDS, Hypothesis, Plan, Treatment
from posattn_jax.config.parts import change, part
from posattn_jax.data.text.words import Words
from posattn_jax.tasks.word_order import WordOrder

# An imported model; with MiniLM, an update takes one core about a second.
RECIPE: dict[str, Any] = {
    "data.validation_limit": 2000,
    "train.batch_size": 16,
    "train.total_steps": 120,
    "train.eval_steps": 120,
    "optimizer.learning_rate": 1e-4,
    "optimizer.weight_decay": 0.0,
    "optimizer.schedule.warmup_steps": 12,
}
LABELS = {name: common_bert.LABELS[name] for name in common_bert.FIVE} | {"rposnet": "rPosNet + abs position"}
# Mixers of Schmidt 2023. They have absolute positions as well, as in the paper's models.
COMPARED = {
    "aposnet": "aPosNet",
    "lightconv_gelu": "LightConv, GELU gate",
    "glinear": "gLinearNet",
    "gaussian": "GaussianNet",
}
MIXERS = ("rposnet", *COMPARED, "shaw", "relative", "lightconv")


def get_config(variant: str = "") -> ConfigDict:
    """A BERT of three blocks with one of `LABELS` or `MIXERS`."""
    is_tiny = variant == "tiny"
    config = common_bert.get_config("bert_tiny", "tiny" if is_tiny else "none")
    config.task = part(WordOrder)
    if is_tiny:
        config.data = part(Words, vocabulary_size=50, length=16)
        return config
    config.data = part(Words, vocabulary_size=4096, length=24)
    if variant.startswith("from="):
        start = variant.removeprefix("from=")
        config.model, config.task.pretrained = common.of_run(start).model, start
        return change(config, RECIPE)
    if variant == "mixers":  # the sweep's
        variant = "absolute"
    if (variant or "composite") not in (*LABELS, *MIXERS):
        known = ", ".join(dict.fromkeys((*LABELS, *MIXERS)))
        raise ValueError(f'config variant "{variant}": expected nothing, {known}, mixers, from=RUN or tiny')
    config.train.update(total_steps=2000, batch_size=32, eval_steps=1000)
    config.optimizer.learning_rate = 1e-3
    config.optimizer.schedule.warmup_steps = 200
    return change(config, fields(variant or "composite"))


def fields(name: str) -> dict[str, Any]:
    """The fields of one of `LABELS` or `MIXERS`, for any base config. A context is as long as a kernel's half."""
    is_mixer = name in MIXERS
    model: Any = common_bert.get_config("bert_tiny", "absolute" if is_mixer else name).model
    attention = model.block.attention
    if is_mixer:
        own: dict[str, Any] = {"context": 8, "own_positions": True, "layer_norm_epsilon": 1e-12}
        attention = mixing(name, attention.num_heads, attention.dropout_rate, **own)
    return {common.ATTENTION: attention, "model.absolute_positions": model.absolute_positions}


def sweep(variant: str = "") -> Plan:
    """Chang 2021, section 2.3: attention by content only gives a token the same output in any order.

    Without positions, a third is right, by construction. The other hypotheses are those of section 3.3 on GLUE, and
    whether weights computed from positions only do as well. With from=RUN, the treatments are parts added to that
    run's model. "mixers" has a plan of its own: does each of four mixers differ from attention?
    """
    if variant.startswith("from="):
        title = {"order": "word order"}
        return common_grafts.sweep(variant.removeprefix("from="), title, {"order": RECIPE}, "accuracy")
    if variant == "mixers":
        treatments = [Treatment("absolute", LABELS["absolute"], fields("absolute"))]
        treatments += [Treatment(name, f"{label} + abs position", fields(name)) for name, label in COMPARED.items()]
        differ = [Hypothesis(f"{label} and attention differ", name, "absolute") for name, label in COMPARED.items()]
        title = "Which mixer tells whether words are in their order?"
        return Plan(title, tuple(treatments), tuple(differ), seeds=PAPER_SEEDS[:3], epoch="last")
    claims = (
        ("Absolute positions give a higher accuracy than none", "absolute", "none"),
        ("Composite attention gives a higher accuracy than absolute positions", "composite", "absolute"),
        ("Composite attention gives a higher accuracy than fixed convolutions", "composite", "fixed"),
        ("Composite attention gives a higher accuracy than dynamic convolutions", "composite", "dynamic"),
        ("rPosNet gives a higher accuracy than absolute positions in attention", "rposnet", "absolute"),
    )
    return Plan(
        "Which attention tells whether words are in their order?",
        tuple(Treatment(name, label, fields(name)) for name, label in LABELS.items()),
        tuple(Hypothesis(*claim, "greater") for claim in claims),
        seeds=PAPER_SEEDS[:3],
        epoch="last",
    )
