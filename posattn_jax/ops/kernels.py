"""Tables over offsets: from a convolution kernel to a grid, from offsets to pairs, and their scores with keys."""

import math
from typing import Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from posattn_jax.axes import Array, Causal, Key, RelativeEncoding, Shape, Sizes, Weights
from posattn_jax.ops import grid
from posattn_jax.ops.scores import product_sum

Outside = Literal["clip", "drop"]


def check_kernel(kernel_shape: Shape, grid_shape: Shape) -> Sizes:
    """Returns `kernel_shape` as a tuple; ValueError unless it is one odd size for each dimension of the grid."""
    shape = () if isinstance(kernel_shape, int) else tuple(int(size) for size in kernel_shape)
    if len(shape) != len(grid_shape) or any(size < 1 or size % 2 == 0 for size in shape):
        example = f"kernel_shape={(3,) * len(grid_shape)}"
        raise ValueError(
            f"kernel_shape={kernel_shape}: expected {len(grid_shape)} odd sizes for grid_shape={grid_shape}, "
            f"such as {example}"
        )
    return shape


def applied_offsets(kernel_shape: Shape, is_causal: Causal = False) -> np.ndarray:
    """Which offsets of a kernel a convolution applies, bool [*K]: all; a causal one those that are not after the place.

    The order is that of attention, `grid.not_after`: row-major, or that of single dimensions.
    """
    offsets = grid.positions(kernel_shape) - np.floor_divide(kernel_shape, 2)
    is_causal = grid.check_causal(is_causal, len(kernel_shape))
    if not is_causal:
        return np.ones(kernel_shape, bool)
    with jax.ensure_compile_time_eval():
        return np.asarray(grid.not_after(jnp.asarray(offsets), is_causal)).reshape(kernel_shape)


def over_offsets(table: Array, grid_shape: Shape, outside: Outside = "clip") -> Array:
    """Expands the table T of a kernel K, with offset 0 in its centre, to every offset of a grid: [*K ...] -> [*R ...].

      out[o] = T[max(-half, min(o, half))]  outside = "clip": offsets beyond the kernel have the value at its edge
      out[o] = T[o] if |o| <= half else 0   outside = "drop"

    The code of Chang 2021 clips, as Shaw 2018 and T5 do; equations 2 and 3 of Chang 2021 drop.

    Args:
      table: [*K ...], with an odd number of entries per dimension, which may be more or fewer than the grid's offsets.
      grid_shape: S.
      outside: see above.

    Raises:
      ValueError: sizes that are not odd, or another `outside`.
    """
    shape = grid.check_grid(grid_shape)
    if outside not in get_args(Outside):
        raise ValueError(f'outside="{outside}": expected "clip" or "drop"')
    kernel = check_kernel(table.shape[: len(shape)], shape)
    for axis, (size, entries) in enumerate(zip(shape, kernel, strict=True)):
        offsets, half = np.arange(1 - size, size), entries // 2
        table = jnp.take(table, np.clip(offsets, -half, half) + half, axis)
        if outside == "drop":
            inside = (np.abs(offsets) <= half).reshape(-1, *(1 for _ in table.shape[axis + 1 :]))
            table = jnp.where(inside, table, 0)
    return table


def by_pair(by_offset: Array, grid_shape: Shape) -> Array:
    """Turns values of each position at every offset into values at every key: [... t *R] -> [... t s].

      out[..., t, s] = by_offset[..., t, s - t]

    Args:
      by_offset: [... t *R], offset 0 in the centre.
      grid_shape: S; t = prod(S).
    """
    shape = grid.check_grid(grid_shape)
    p = len(shape)
    lead = by_offset.shape[: by_offset.ndim - p - 1]
    x = by_offset.reshape(*lead, *shape, *grid.relative_shape(shape))
    for axis, size in enumerate(shape):
        if size > 1:
            axes = len(lead) + axis, len(lead) + p + axis
            x = jnp.moveaxis(relative_shift(jnp.moveaxis(x, axes, (-2, -1))), (-2, -1), axes)
    return x.reshape(*lead, math.prod(shape), math.prod(shape))


def relative_shift(x: Array, line: int = 1, axis: int = -2) -> Array:
    """From offsets to keys: out[..., t, s, ...] = x[..., t, (T - 1 - t) L + s, ...], with T queries and lines of L.

    In the flattened array this is entry t (r - L) + (T - 1) L + s. So the code drops the first (T - 1) L entries, and
    folds the rest into rows that are shorter by L. The queries are `axis`, and the offsets the axis after it.
    """
    axis %= x.ndim
    before, (t, r), after = x.shape[:axis], x.shape[axis : axis + 2], x.shape[axis + 2 :]
    if t == 1:
        return x
    flat = x.reshape(*before, t * r, *after)
    flat = lax.slice_in_dim(flat, (t - 1) * line, t * r - line, axis=axis)
    return lax.slice_in_dim(flat.reshape(*before, t, r - line, *after), 0, r - (t - 1) * line, axis=axis + 1)


def key_scores(key: Key, encoding: RelativeEncoding, grid_shape: Shape) -> Weights:
    """A_ts = k_s . F_{t-s}: the score of each key with the encoding of its offset to the query (Chang 2021, mirrored).

    The offset goes from the key to the query; in `relative_attention` it goes from the query to the key.

    Args:
      key: [b s h d].
      encoding: F [*R h d].
      grid_shape: S; s = prod(S).

    Returns:
      A [b h t s], in float32 or better.
    """
    scores = product_sum("bshd,rhd->bhsr", key, encoding.reshape(-1, *encoding.shape[-2:]))
    return by_pair(scores.reshape(*scores.shape[:-1], *encoding.shape[:-2]), grid_shape).swapaxes(-1, -2)
