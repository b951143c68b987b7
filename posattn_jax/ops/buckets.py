"""T5's buckets of offsets: near ones have one each, far ones share one, the wider the further."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from posattn_jax.axes import Array, Float, RelativeBias, Shape
from posattn_jax.ops import grid


def buckets(offsets: np.ndarray, num_buckets: int, max_distance: int) -> np.ndarray:
    """Which of N buckets each offset s - t is in (Raffel 2020, section 2.1, and its code).

      n = N / 2 for each direction, of which e = n / 2 for one distance each; with D = max_distance
      bucket = n [s > t] + |s - t|                                                        |s - t| < e
      bucket = n [s > t] + min(n - 1, e + floor(log(|s - t| / e) / log(D / e) (n - e)))   elsewhere

    The logarithm is that of float32, as in T5's code: rounding decides on the edges of buckets.

    Raises:
      ValueError: an odd number of buckets, fewer than 4, or a `max_distance` within the first of them.
    """
    if num_buckets < 4 or num_buckets % 2:
        raise ValueError(f"num_buckets={num_buckets}: expected an even number from 4 on")
    each = num_buckets // 2
    exact = each // 2
    if max_distance <= exact:
        raise ValueError(f"max_distance={max_distance}: expected more than num_buckets // 4 = {exact}")
    distance = np.abs(offsets)
    ratio = np.maximum(distance, exact).astype(np.float32) / np.float32(exact)
    far = np.log(ratio) / np.float32(math.log(max_distance / exact)) * np.float32(each - exact)
    shared = np.minimum(each - 1, exact + far.astype(np.int64))
    return each * (offsets > 0) + np.where(distance < exact, distance, shared)


def over_buckets(table: Float[Array, "*n h"], grid_shape: Shape, max_distance: int) -> RelativeBias:
    """What the bucket of every offset has: beta_o = table[bucket(o_1), ..., bucket(o_p)], [*R h].

    Args:
      table: [*N h], the buckets of each dimension of the grid.
      grid_shape: S.
      max_distance: see `buckets`.
    """
    by_offset: Any = table
    for axis, size in enumerate(grid.check_grid(grid_shape)):
        by_offset = jnp.take(by_offset, buckets(np.arange(1 - size, size), table.shape[axis], max_distance), axis)
    return by_offset
