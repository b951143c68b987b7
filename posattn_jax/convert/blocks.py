"""Common functions for encoder blocks of others: the fields of our blocks, and the names of their tensors."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import flax.linen as nn
import numpy as np

from posattn_jax.convert.tensors import Entry, from_heads, linear, norm
from posattn_jax.nn.attention import PositionalSelfAttention
from posattn_jax.nn.blocks import EncoderBlock
from posattn_jax.nn.energies import DotProducts
from posattn_jax.nn.gating import exact_gelu, tanh_gelu
from posattn_jax.nn.projections import LinearProjections
from posattn_jax.ops.initial import NORMAL
from posattn_jax.system.errors import InputError

ACTIVATIONS = {"gelu": exact_gelu, "gelu_pytorch_tanh": tanh_gelu, "gelu_new": tanh_gelu, "relu": nn.relu}
# Fields that do not change the outputs of a trained model without dropout.
SILENT = ("parent", "name", "kernel_init", "bias_init", "embedding_init", "dropout_rate", "mlp_dropout_rate")
SILENT += ("implementation", "grid_axis", "remat", "precision", "dtype", "param_dtype")
MEANS = {"projections": LinearProjections(), "energies": DotProducts()}  # the defaults that None stands for


def blocks(
    num_blocks: int,
    *,
    norm: Literal["post", "pre"],
    num_heads: int,
    mlp_dim: int,
    activation: Callable,
    layer_norm_epsilon: float,
    use_bias: bool = True,
    dropout_rate: float = 0.0,
    attention_dropout_rate: float = 0.0,
    more: Callable[[], dict[str, Any]] = dict,
) -> tuple[EncoderBlock, ...]:
    """Blocks without positions: see `EncoderBlock`. `use_bias` is for queries, keys and values.

    `more` makes further fields of an attention layer, or replaces these. It is called for each layer, so that layers
    share no part.
    """

    def block() -> EncoderBlock:
        own: dict[str, Any] = {"num_heads": num_heads, "dropout_rate": attention_dropout_rate, "kernel_init": NORMAL}
        own["projections"] = LinearProjections(use_bias=use_bias, kernel_init=NORMAL)
        attention = PositionalSelfAttention(**own | more())
        fields: dict[str, Any] = {"kernel_init": NORMAL, "layer_norm_epsilon": layer_norm_epsilon}
        return EncoderBlock(attention, mlp_dim, dropout_rate, norm, activation, mlp_dropout_rate=0.0, **fields)

    return tuple(block() for _ in range(num_blocks))


def fields_of(given: Sequence[EncoderBlock], **instead: Any) -> dict[str, Any]:
    """The arguments of `blocks` that make these blocks, as far as it can make them; some are replaced."""
    block, attention = given[0], given[0].attention
    return {
        "num_blocks": len(given),
        "norm": block.norm,
        "num_heads": attention.num_heads,
        "mlp_dim": block.mlp_dim,
        "activation": block.activation,
        "layer_norm_epsilon": block.layer_norm_epsilon,
        "use_bias": has_bias(block),
        "dropout_rate": block.dropout_rate,
        "attention_dropout_rate": attention.dropout_rate,
    } | instead


def has_bias(block: EncoderBlock) -> bool:
    """Whether the queries, keys and values of a block have biases."""
    return getattr(getattr(block.attention, "projections", None), "use_bias", True)


def activation_name(activation: Callable) -> str:
    """The name of an activation in their configs. Raises InputError if it has none."""
    names = [name for name, known in ACTIVATIONS.items() if known is activation]
    if not names:
        raise InputError(f"activation={_shown(activation)}: expected {', '.join(ACTIVATIONS)}")
    return names[0]


def activation_of(config: dict[str, Any], where: Any) -> Callable:
    """The activation of the feed-forward networks in a config. Raises InputError if its name is unknown."""
    name = config.get("hidden_act", "gelu")
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise InputError(f'{where}: hidden_act="{name}": expected {", ".join(ACTIVATIONS)}')
    return ACTIVATIONS[name]


def entries(
    ours: str,
    num_heads: int,
    use_bias: bool,
    *,
    projections: tuple[str, ...],
    output: str,
    attention_norm: str,
    hidden: str,
    feed_forward: str,
    feed_forward_norm: str,
) -> list[Entry]:
    """The entries of the parameters of a block.

    Args:
      ours: the path of the block.
      num_heads: h.
      use_bias: whether queries, keys and values have biases.
      projections: the modules of the linear maps of queries, keys and values; or one module for all three,
        concatenated; empty: they are not linear maps.
      output, attention_norm, hidden, feed_forward, feed_forward_norm: the modules of the other parts.
    """
    found = fused(f"{ours}/attention/projections", projections, num_heads, use_bias) if projections else []
    return [
        *found,
        *from_heads(f"{ours}/attention/output", output, num_heads),
        *norm(f"{ours}/attention_norm", attention_norm),
        *linear(f"{ours}/feed_forward/hidden", hidden),
        *linear(f"{ours}/feed_forward/output", feed_forward),
        *norm(f"{ours}/feed_forward_norm", feed_forward_norm),
    ]


def fused(ours: str, theirs: tuple[str, ...], num_heads: int, use_bias: bool = True, num_parts: int = 3) -> list[Entry]:
    """The entries of `LinearProjections` with `num_parts` of queries, keys and values. `theirs` are the modules."""
    number = len(theirs)

    def kernel(*weights):  # each [n h d, c]
        joined = np.concatenate(weights)
        return [joined.T.reshape(joined.shape[1], num_parts, num_heads, -1)]

    def biases(*vectors):
        return [np.concatenate(vectors).reshape(num_parts, num_heads, -1)]

    weights = tuple(f"{each}.weight" for each in theirs)
    found = [Entry((f"{ours}/kernel",), weights, kernel, lambda k: np.split(k.reshape(len(k), -1).T, number))]
    if use_bias:
        vectors = tuple(f"{each}.bias" for each in theirs)
        found.append(Entry((f"{ours}/bias",), vectors, biases, lambda b: np.split(b.reshape(-1), number)))
    return found


def check_alike(model: Any, theirs: Any, format_name: str) -> None:
    """Raises InputError if a model differs from `theirs`, which is the nearest model that the format can describe."""
    differing = list(_differing(model, theirs, "model"))
    if differing:
        raise InputError(f"{format_name} has no {'; '.join(differing)}")


def _differing(given: Any, theirs: Any, path: str) -> Iterator[str]:
    """Describes each difference of two modules in a field that changes their outputs. Names of terms change none."""
    given, theirs = (tuple(each.values()) if isinstance(each, Mapping) else each for each in (given, theirs))
    if isinstance(given, tuple) and isinstance(theirs, tuple) and len(given) == len(theirs):
        for i, pair in enumerate(zip(given, theirs, strict=True)):
            yield from _differing(*pair, f"{path}[{i}]")
    elif isinstance(given, nn.Module) and type(given) is type(theirs):
        for field in dataclasses.fields(given):
            if field.name not in SILENT:
                pair = (getattr(each, field.name) for each in (given, theirs))
                pair = (MEANS.get(field.name) if each is None else each for each in pair)
                yield from _differing(*pair, f"{path}.{field.name}")
    elif given != theirs:
        yield f"{path}={_shown(given)}, but {_shown(theirs)}"


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_shown, value))})"
    return type(value).__name__ if isinstance(value, nn.Module) else getattr(value, "__name__", str(value))
