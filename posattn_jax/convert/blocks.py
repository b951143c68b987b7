"""What the encoder blocks of others have in common: the fields of ours, and the names of their tensors."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import flax.linen as nn
import numpy as np

from posattn_jax.convert.tensors import Entry, linear, norm, one
from posattn_jax.nn.attention import PositionalSelfAttention
from posattn_jax.nn.blocks import EncoderBlock
from posattn_jax.nn.energies import DotProducts
from posattn_jax.nn.gating import exact_gelu, tanh_gelu
from posattn_jax.nn.projections import LinearProjections
from posattn_jax.ops.initial import NORMAL
from posattn_jax.system.errors import InputError

ACTIVATIONS = {"gelu": exact_gelu, "gelu_pytorch_tanh": tanh_gelu, "gelu_new": tanh_gelu, "relu": nn.relu}
# Fields that change no output of a trained model in which nothing is dropped.
SILENT = ("parent", "name", "kernel_init", "bias_init", "embedding_init", "dropout_rate", "mlp_dropout_rate")
SILENT += ("implementation", "grid_axis", "remat", "precision", "dtype", "param_dtype")
MEANS = {"projections": LinearProjections(), "energies": DotProducts()}  # what None stands for


def blocks(
    num_blocks: int,
    *,
    norm: str,
    num_heads: int,
    mlp_dim: int,
    activation: Callable,
    layer_norm_epsilon: float,
    use_bias: bool = True,
    dropout_rate: float = 0.0,
    attention_dropout_rate: float = 0.0,
    more: Callable[[], dict[str, Any]] = dict,
) -> tuple[EncoderBlock, ...]:
    """Blocks that know no positions: see `EncoderBlock`; `use_bias` of queries, keys and values.

    `more` makes further fields of each attention layer, or others than these, of parts that are its own.
    """

    def block() -> EncoderBlock:
        own: dict[str, Any] = {"num_heads": num_heads, "dropout_rate": attention_dropout_rate, "kernel_init": NORMAL}
        own["projections"] = LinearProjections(use_bias=use_bias, kernel_init=NORMAL)
        attention = PositionalSelfAttention(**own | more())
        fields: dict[str, Any] = {"kernel_init": NORMAL, "layer_norm_epsilon": layer_norm_epsilon}
        return EncoderBlock(attention, mlp_dim, dropout_rate, norm, activation, mlp_dropout_rate=0.0, **fields)

    return tuple(block() for _ in range(num_blocks))


def fields_of(given: Sequence[EncoderBlock]) -> dict[str, Any]:
    """The fields of `blocks` that make these, where it can."""
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
    }


def has_bias(block: EncoderBlock) -> bool:
    """Whether its queries, keys and values have biases."""
    return getattr(getattr(block.attention, "projections", None), "use_bias", True)


def activation_name(activation: Callable) -> str:
    """What their configs call it; InputError where they have no name for it."""
    names = [name for name, known in ACTIVATIONS.items() if known is activation]
    if not names:
        raise InputError(f"activation={_shown(activation)}: expected {', '.join(ACTIVATIONS)}")
    return names[0]


def activation_of(config: dict[str, Any], where: Any) -> Callable:
    """That of the feed-forward networks, as a config says it; InputError where there is none of the name."""
    name = config.get("hidden_act", "gelu")
    if name not in ACTIVATIONS:
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
    """The parameters of a block, and the names of the modules that have their tensors.

    Args:
      ours: the path of the block.
      num_heads: h.
      use_bias: whether queries, keys and values have biases.
      projections: of queries, keys and values; or of all of them, one after the other; none: they are no linear maps.
      output, attention_norm, hidden, feed_forward, feed_forward_norm: of the other parts.
    """
    found = fused(f"{ours}/attention/projections", projections, num_heads, use_bias) if projections else []
    of_output, bias = linear(f"{ours}/attention/output", output)
    return [
        *found,
        one(
            *of_output.ours,
            *of_output.theirs,
            lambda weight: weight.T.reshape(num_heads, -1, len(weight)),
            lambda kernel: kernel.reshape(-1, kernel.shape[-1]).T,
        ),
        bias,
        *norm(f"{ours}/attention_norm", attention_norm),
        *linear(f"{ours}/feed_forward/hidden", hidden),
        *linear(f"{ours}/feed_forward/output", feed_forward),
        *norm(f"{ours}/feed_forward_norm", feed_forward_norm),
    ]


def fused(ours: str, theirs: tuple[str, ...], num_heads: int, use_bias: bool = True, num_parts: int = 3) -> list[Entry]:
    """`LinearProjections` of so many of queries, keys and values, and the modules that have their linear maps."""
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
    """InputError where a model has what one of the format has not; `theirs` is the nearest of these."""
    differing = list(_differing(model, theirs, "model"))
    if differing:
        raise InputError(f"{format_name} has no {'; '.join(differing)}")


def _differing(given: Any, theirs: Any, path: str) -> Iterator[str]:
    """Where two modules differ in a field that matters, and what each has there."""
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
