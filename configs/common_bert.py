"""What the configs of BERT (Chang 2021) share: its pre-training by masked language modelling, and its convolutions."""

from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict

from configs import common
from posattn_jax.analysis.plan import Hypothesis, Plan, Treatment
from posattn_jax.system.files import flatten

FIXED, DYNAMIC, KEY = "fixed_convolution", "dynamic_convolution", "key_convolution"
COMPOSITE: dict[str, Any] = {"model.terms": ("content", FIXED, DYNAMIC)}


def _convolved(*parts: str) -> dict[str, Any]:
    return {"model.convolved": parts}


# The rows of the paper's tables, as changes of a BERT that knows no positions.
CONVOLUTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "absolute": {"model.absolute_positions": True},
    "fixed": {"model.terms": ("content", FIXED)},
    "dynamic": {"model.terms": ("content", DYNAMIC)},
    "composite": COMPOSITE,
    "composite_key": {"model.terms": ("content", FIXED, DYNAMIC, KEY)},
    "depthwise": {"model.value.kind": "plus_depthwise"},
    "composite_depthwise": COMPOSITE | {"model.value.kind": "plus_depthwise"},
    "qk": _convolved("query", "key"),
    "value": _convolved("value"),
    "qkv": _convolved("query", "key", "value"),
    "composite_qk": COMPOSITE | _convolved("query", "key"),
    "composite_value": COMPOSITE | _convolved("value"),
    "composite_qkv": COMPOSITE | _convolved("query", "key", "value"),
    # Half of the heads attend, the others are convolutions.
    "convbert": {
        "model.absolute_positions": True,
        "model.beside": "span_convolution",
        "model.kernel.shape": (9,),
        "model.kernel.at": "key",
    },
}
# As the paper's Table 6 names them.
LABELS = {
    "none": "No convolution",
    "absolute": "No convolution + abs position",
    "fixed": "Fixed lightweight",
    "dynamic": "Dynamic lightweight",
    "composite": "Composite",
    "composite_key": "Composite + key-based dynamic",
    "depthwise": "Fixed depthwise",
    "composite_depthwise": "Composite + fixed depthwise",
    "qk": "Convolutional QK",
    "value": "Convolutional value",
    "qkv": "Convolutional QKV",
    "composite_qk": "Composite + convolutional QK",
    "composite_value": "Composite + convolutional value",
    "composite_qkv": "Composite + convolutional QKV",
    "convbert": "ConvBERT",
}
FIVE = ("none", "absolute", "fixed", "dynamic", "composite")

SIZES: dict[str, dict[str, int]] = {
    "bert_tiny": {"embedding_dim": 128, "width": 128, "num_heads": 4, "mlp_dim": 512, "num_blocks": 3},
    "bert_small": {"embedding_dim": 128, "width": 256, "num_heads": 4, "mlp_dim": 1024, "num_blocks": 12},
    "bert_base": {"embedding_dim": 768, "width": 768, "num_heads": 12, "mlp_dim": 3072, "num_blocks": 12},
}


def get_config(size: str, variant: str = "") -> ConfigDict:
    """A BERT of a size, with one of `CONVOLUTIONS`; "": absolute; "tiny": composite, two steps, for tests."""
    config = common.get_config()
    config.task = "masked_lm"
    config.data.dir = "data/text"
    config.model.update(
        kind="bert",
        terms=("content",),
        attention_dropout_rate=0.1,
        mlp_dropout_rate=0.0,
        activation="gelu",
        layer_norm_epsilon=1e-12,
        projection_init="normal",
        linear_init="normal",
        **SIZES[size],
    )
    config.model.encoding.kind = "none"
    config.model.kernel.shape = (17,)
    config.model.span.enabled = False
    config.train.update(total_epochs=0.0, accumulation_steps=1)
    config.optimizer.update(eps=1e-6, weight_decay=0.01, clip_norm=1.0, schedule="linear", warmup_steps=10_000)
    if variant == "tiny":
        config.data.update(vocabulary_size=50, length=12)
        config.model.update(embedding_dim=6, width=8, num_heads=2, mlp_dim=16, num_blocks=1)
        config.model.kernel.shape = (5,)
        config.train.update(total_steps=2, batch_size=4, eval_batch_size=8)
        variant = "composite"
    return with_convolution(config, variant or "absolute", size)


def of_paper(size: str, variant: str, learning_rate: float, **train: int) -> ConfigDict:
    """As `get_config`, pre-trained as in Table 4, and evaluated every 5,000 updates; "tiny" as it is.

    An epoch of the paper's 31 million pairs is longer than all of the small model's training. Of the 1.5 million pairs
    that are held out 10,000 are evaluated: all would take most of the time of 5,000 updates, of 640,000 pairs.
    """
    config = get_config(size, variant)
    if variant != "tiny":
        config.train.update(eval_steps=5000, **train)
        config.data.validation_limit = 10_000
        config.optimizer.learning_rate = learning_rate
    return config


def with_convolution(config: ConfigDict, name: str, size: str) -> ConfigDict:
    """The config with one of `CONVOLUTIONS`; ValueError where there is none of the name."""
    if name not in CONVOLUTIONS:
        raise ValueError(f'config variant "{name}": expected nothing, {", ".join(CONVOLUTIONS)} or tiny')
    config.update_from_flattened_dict(_fields(name, size))
    return config


def _fields(name: str, size: str) -> dict[str, Any]:
    if name != "convbert":
        return CONVOLUTIONS[name]
    width, num_heads = SIZES[size]["width"], SIZES[size]["num_heads"]
    return CONVOLUTIONS[name] | {"model.num_heads": num_heads // 2, "model.head_dim": width // num_heads}


def treatments(names: Sequence[str], size: str) -> tuple[Treatment, ...]:
    """Some of `CONVOLUTIONS`, each with all the fields that any of them changes: whichever config they start from."""
    changed = {field for name in names for field in _fields(name, size)}
    plain = {field: value for field, value in flatten(get_config(size, "none").to_dict()).items() if field in changed}
    return tuple(Treatment(name, LABELS[name], plain | _fields(name, size)) for name in names)


def sweep(names: Sequence[str], size: str, seeds: tuple[int, ...]) -> Plan:
    """Pre-training with some of `CONVOLUTIONS`, judged by the loss after the last update."""
    claims = (
        ("Without positions the loss is higher than with absolute ones", "none", "absolute", "greater"),
        ("Fixed convolutions give a lower loss than absolute positions", "fixed", "absolute", "less"),
        ("Dynamic convolutions give a lower loss than absolute positions", "dynamic", "absolute", "less"),
        ("Composite attention gives a lower loss than absolute positions", "composite", "absolute", "less"),
        ("Composite attention gives a lower loss than fixed convolutions", "composite", "fixed", "less"),
        ("Composite attention gives a lower loss than dynamic convolutions", "composite", "dynamic", "less"),
    )
    return Plan(
        "Masked language modelling: are convolutions in attention better than absolute positions?",
        treatments(names, size),
        tuple(Hypothesis(*claim) for claim in claims if {claim[1], claim[2]} <= set(names)),
        seeds=seeds,
        response="loss",
        epoch="last",
    )
