"""The sizes that an NNX module is made with, before it sees any features, and how Linen's modules keep to them."""

import dataclasses
import functools
import inspect
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from posattn_jax.nn.parts import PARTS
from posattn_jax.nn.tokens import Tokens

SIZES = {
    "in_features": "c, the width of the inputs.",
    "num_dims": "p, the dimensions of the grid.",
    "grid_shape": "S, the largest grid that the tables cover.",
    "num_heads": "h of the layer; of a span needed with `per_head`.",
    "head_dim": "d of the layer.",
}


class Settings(dict[str, Any]):
    """What a module was made with. It is compared and hashed by its content, as what is static in NNX must be."""

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return hash(frozenset(self.items()))


@functools.cache
def sized(linen_class: type[nn.Module], made_with: Settings) -> type[nn.Module]:
    """The Linen module for these sizes alone: its calls raise a ValueError for tokens or inputs of others.

    Tables of offsets cover `grid_shape`, whatever the reference grid. Projections compute `parts`, whatever is asked.
    """
    signature = inspect.signature(linen_class.__call__)
    sizes = {name: made_with.get(name) or 0 for name in ("num_dims", "num_heads", "head_dim")}
    grid_shape, parts, width = (made_with.get(name) for name in ("grid_shape", "parts", "in_features"))

    def call(self: Any, *args: Any, **fields: Any) -> Any:
        given = signature.bind(self, *args, **fields)
        tokens = given.arguments.get("tokens")
        inputs: Any = given.arguments.get("inputs", given.arguments.get("x")) if tokens is None else tokens.inputs
        if width is not None and jnp.shape(inputs)[-1] != width:
            raise ValueError(f"inputs has shape {jnp.shape(inputs)}: expected a width of in_features={width}")
        if isinstance(tokens, Tokens):
            tokens.check_fits(self, **sizes | ({"num_dims": len(grid_shape)} if grid_shape else {}))
            if grid_shape:
                given.arguments["tokens"] = dataclasses.replace(tokens, reference_shape=grid_shape)
        if parts is None:
            return linen_class.__call__(*given.args, **given.kwargs)  # pyright: ignore[reportCallIssue]
        asked = given.arguments.get("parts", PARTS)
        projected = linen_class.__call__(self, tokens, parts)  # pyright: ignore[reportCallIssue]
        return tuple(x if part in asked else None for part, x in zip(PARTS, projected, strict=True))

    call.__annotations__ = dict(linen_class.__call__.__annotations__)  # by which checks tell kinds of parts apart
    names = {"__doc__": linen_class.__doc__, "__module__": linen_class.__module__}
    return type(linen_class.__name__, (linen_class,), {"__call__": call, **names})


def document(linen_class: type[nn.Module], sizes: tuple[str, ...]) -> str:
    """The docstring of the NNX class: Linen's without its example, and with the sizes."""
    text = inspect.cleandoc(linen_class.__doc__ or "").partition("\nExample:")[0].rstrip()
    before, _, fields = text.partition("\nAttributes:\n")
    lines = [f"  {name}: {SIZES[name]}" for name in sizes] + [fields.rstrip()] * bool(fields)
    lines.append('  rngs: the rngs: "params", and with dropout also "dropout".')
    lines.append("  example: the arguments of a call, for parameters of its sizes; see `Bridged`.")
    return "\n".join([before.rstrip(), "", "Args:", *lines, ""])
