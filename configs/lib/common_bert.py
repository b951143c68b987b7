"""Shared by the configs of BERT (Chang 2021): pre-training by masked language modelling, and convolutions."""

from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict

from configs.lib import common
from posattn_jax import (
    Bert,
    Content,
    ConvolutionalProjections,
    DepthwiseConvolution,
    EncoderBlock,
    KernelEncoding,
    KeyPositional,
    LinearProjections,
    PlusDepthwise,
    Positional,
    PositionalSelfAttention,
    RelativeBias,
    SpanConvolution,
)
from posattn_jax.analysis.plan import Treatment
from posattn_jax.config.parts import change, part
from posattn_jax.data.text.corpus import Text
from posattn_jax.system.files import value_at
from posattn_jax.tasks.masked_lm import MaskedLanguageModelling
from posattn_jax.train.optimizer import Adam
from posattn_jax.train.schedule import Linear

# The changes of a BERT without positions in the rows of the paper's tables: terms, parts that are convolved, or ...
COMPOSITE = ("fixed_convolution", "dynamic_convolution")
CONVOLUTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "absolute": {"absolute_positions": True},
    "fixed": {"terms": ("fixed_convolution",)},
    "dynamic": {"terms": ("dynamic_convolution",)},
    "composite": {"terms": COMPOSITE},
    "composite_key": {"terms": (*COMPOSITE, "key_convolution")},
    "depthwise": {"depthwise": True},
    "composite_depthwise": {"terms": COMPOSITE, "depthwise": True},
    "qk": {"convolved": ("query", "key")},
    "value": {"convolved": ("value",)},
    "qkv": {"convolved": ("query", "key", "value")},
    "composite_qk": {"terms": COMPOSITE, "convolved": ("query", "key")},
    "composite_value": {"terms": COMPOSITE, "convolved": ("value",)},
    "composite_qkv": {"terms": COMPOSITE, "convolved": ("query", "key", "value")},
    "convbert": {"absolute_positions": True},  # half of the heads attend, the others convolve
}
# The names in the paper's Table 6.
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
    """A BERT of a size with one of `CONVOLUTIONS`; "": absolute positions; "tiny": composite, two steps, for tests."""
    config = common.get_config()
    config.data = part(Text, dir="data/text")
    config.task = part(MaskedLanguageModelling)
    config.train.update(total_epochs=0.0, accumulation_steps=1)
    schedule = part(Linear, warmup_steps=10_000)
    # All gradients are clipped together, as in the runs that are reported. None of them has a span.
    config.optimizer = part(Adam, eps=1e-6, weight_decay=0.01, clip_norm=1.0, clips_spans=True, schedule=schedule)
    if variant == "tiny":
        config.model = bert(embedding_dim=6, width=8, num_heads=2, mlp_dim=16, num_blocks=1)
        config.data.update(vocabulary_size=50, length=12)
        config.train.update(total_steps=2, batch_size=4, eval_batch_size=8)
        return change(config, fields("composite", (5,)))
    config.model = bert(**SIZES[size])
    return with_convolution(config, variant or "absolute", size)


def bert(embedding_dim: int, width: int, num_heads: int, mlp_dim: int, num_blocks: int) -> ConfigDict:
    """A BERT without positions."""
    normal: dict[str, Any] = {"kernel_init": "normal"}
    attention = part(
        PositionalSelfAttention,
        num_heads=num_heads,
        projections=part(LinearProjections, **normal),
        dropout_rate=0.1,
        **normal,
    )
    rates: dict[str, Any] = {"dropout_rate": 0.1, "mlp_dropout_rate": 0.0}
    epsilon: dict[str, Any] = {"layer_norm_epsilon": 1e-12}
    block = part(EncoderBlock, attention=attention, mlp_dim=mlp_dim, activation="gelu", **rates, **normal, **epsilon)
    return part(
        Bert,
        width=width,
        num_blocks=num_blocks,
        block=block,
        embedding_dim=embedding_dim,
        max_length=None,
        absolute_positions=False,
        dtype="float32",
        param_dtype="float32",
    )


def with_convolution(config: ConfigDict, name: str, size: str) -> ConfigDict:
    """The config with one of `CONVOLUTIONS`. Raises ValueError if the name is unknown."""
    if name not in CONVOLUTIONS:
        raise ValueError(f'config variant "{name}": expected nothing, {", ".join(CONVOLUTIONS)} or tiny')
    return change(config, fields(name, size=size))


def fields(name: str, kernel_shape: tuple[int, ...] = (17,), size: str = "") -> dict[str, Any]:
    """The fields that one of `CONVOLUTIONS` changes in a BERT without positions."""
    row, kernel, found = CONVOLUTIONS[name], {"kernel_shape": kernel_shape}, {}
    terms = {
        "content": part(Content),
        "fixed_convolution": part(RelativeBias, **kernel),
        "dynamic_convolution": part(Positional, encoding=part(KernelEncoding, **kernel)),
        "key_convolution": part(KeyPositional, encoding=part(KernelEncoding, **kernel)),
    }
    if "absolute_positions" in row:
        found["model.absolute_positions"] = True
    if "terms" in row:
        found[common.TERMS] = {each: terms[each] for each in ("content", *row["terms"])}
    if "depthwise" in row:
        found[f"{common.ATTENTION}.values"] = part(PlusDepthwise, convolution=part(DepthwiseConvolution, **kernel))
    if "convolved" in row:
        projections = part(ConvolutionalProjections, convolved=row["convolved"], kernel_init="normal", **kernel)
        found[f"{common.ATTENTION}.projections"] = projections
    if name == "convbert":
        width, num_heads = SIZES[size]["width"], SIZES[size]["num_heads"]
        found[f"{common.ATTENTION}.num_heads"] = num_heads // 2
        found[f"{common.ATTENTION}.head_dim"] = width // num_heads
        found[f"{common.ATTENTION}.extra_heads"] = part(
            SpanConvolution, kernel_shape=(9,), kernel_at="key", dropout_rate=0.1, kernel_init="normal"
        )
    return found


def treatments(names: Sequence[str], size: str, others: int | None = None) -> tuple[Treatment, ...]:
    """Treatments of some `CONVOLUTIONS`. Each sets all fields that any of them changes, for any base config.

    Those that are not `FIVE` have only the first `others` seeds, if given.
    """
    plain = get_config(size, "none")
    changed = {path: value_at(plain.to_dict(), path) for name in names for path in fields(name, size=size)}
    return tuple(
        Treatment(name, LABELS[name], changed | fields(name, size=size), num_seeds=None if name in FIVE else others)
        for name in names
    )
