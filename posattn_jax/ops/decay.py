"""Biases that decrease with the distance between key and query."""

import math

import jax.numpy as jnp
from jax.typing import DTypeLike

from posattn_jax.axes import Array, Float, RelativeBias, Shape
from posattn_jax.ops import grid
from posattn_jax.ops.precision import times


def slopes(num_heads: int) -> Float[Array, "h"]:
    """m_h = 2^(-8 h / H) for h = 1 ... H (Press 2021, section 3).

    If H is not a power of 2, as in the paper's code: the slopes of the next smaller power P, then every other of 2 P.
    """
    power = 2 ** int(math.log2(num_heads))

    def of(heads: int) -> list[float]:
        return [2.0 ** (-8 * h / heads) for h in range(1, heads + 1)]

    return jnp.asarray((of(power) + of(2 * power)[::2])[:num_heads], jnp.result_type(float))


def distances(grid_shape: Shape, dtype: DTypeLike, query_grid_shape: Shape | None = None) -> Float[Array, "*r 1"]:
    """The Euclidean distance `|s - t|`, in positions, at every offset of `grid.relative_offsets`."""
    return jnp.linalg.norm(grid.relative_offsets(grid_shape, query_grid_shape).astype(dtype), axis=-1)[..., None]


def decay(grid_shape: Shape, rates: Float[Array, "h"], query_grid_shape: Shape | None = None) -> RelativeBias:
    """`-a_h |s - t|` at every offset, [*R h], for rates a [h]."""
    return times(-distances(grid_shape, rates.dtype, query_grid_shape), rates)
