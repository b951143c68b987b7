"""Biases by the distance between key and query: they decrease with it, or are those of T5's buckets.

Of T5's, small distances have a bucket each, and larger ones share buckets that widen with distance.
"""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
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


def buckets(offsets: np.ndarray, num_buckets: int, max_distance: int) -> np.ndarray:
    """The index of the bucket, of N, that holds each offset s - t (Raffel 2020, section 2.1, and its code).

      n = N / 2 buckets for each direction, e = n / 2 of them for a single distance each; D = max_distance
      bucket = n [s > t] + |s - t|                                                        |s - t| < e
      bucket = n [s > t] + min(n - 1, e + floor(log(|s - t| / e) / log(D / e) (n - e)))   elsewhere

    The logarithm is computed in float32, as in T5's code, because rounding decides at the edges of buckets.

    Raises:
      ValueError: an odd number of buckets, fewer than 4, or a `max_distance` of at most e.
    """
    check_buckets(num_buckets, max_distance)
    each = num_buckets // 2
    exact = each // 2
    distance = np.abs(offsets)
    ratio = np.maximum(distance, exact).astype(np.float32) / np.float32(exact)
    far = np.log(ratio) / np.float32(math.log(max_distance / exact)) * np.float32(each - exact)
    shared = np.minimum(each - 1, exact + far.astype(np.int64))
    return each * (offsets > 0) + np.where(distance < exact, distance, shared)


def check_buckets(num_buckets: int, max_distance: int) -> None:
    """ValueError for sizes that `buckets` refuses."""
    if num_buckets < 4 or num_buckets % 2:
        raise ValueError(f"num_buckets={num_buckets}: expected an even number from 4 on")
    if not max_distance > num_buckets // 4:
        raise ValueError(f"max_distance={max_distance}: expected more than num_buckets // 4 = {num_buckets // 4}")


def over_buckets(table: Float[Array, "*n h"], grid_shape: Shape, max_distance: int) -> RelativeBias:
    """The table's entry for the bucket of every offset: beta_o = table[bucket(o_1), ..., bucket(o_p)], [*R h].

    Args:
      table: [*N h], with N_i buckets for dimension i of the grid.
      grid_shape: S.
      max_distance: see `buckets`.
    """
    by_offset: Any = table
    for axis, size in enumerate(grid.check_grid(grid_shape)):
        by_offset = jnp.take(by_offset, buckets(np.arange(1 - size, size), table.shape[axis], max_distance), axis)
    return by_offset
