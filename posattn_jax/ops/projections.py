"""Projections of features to those of heads, several projections in one product."""

from collections.abc import Callable

import jax.numpy as jnp
from jax import lax
from jax.lax import PrecisionLike

from posattn_jax.axes import Array, Features, Float


def fused_projection(
    inputs: Features,
    kernel: Float[Array, "c n h d"],
    bias: Float[Array, "n h d"] | None = None,
    *,
    precision: PrecisionLike = None,
    dot_general: Callable | None = None,
) -> Float[Array, "n b t h d"]:
    """x W_i + b_i for each of n projections, [n b t h d]; `dot_general` replaces `jax.lax.dot_general` unless None."""
    product = dot_general or lax.dot_general
    fused = jnp.moveaxis(product(inputs, kernel, (((2,), (0,)), ((), ())), precision=precision), 2, 0)
    return fused if bias is None else fused + bias[:, None, None]
