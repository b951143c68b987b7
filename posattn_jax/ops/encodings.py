"""Sinusoidal features of positions, rotary encodings, and relative encodings assembled from tables."""

import functools
import math
from collections.abc import Sequence
from typing import Literal

import jax.numpy as jnp
import numpy as np

from posattn_jax.axes import Array, Float, Int, Query, RelativeEncoding, Shape
from posattn_jax.ops import grid
from posattn_jax.ops.kernels import Outside, over_offsets
from posattn_jax.ops.precision import float32_or_better, plus, same_dtype, times

Combine = Literal["sum", "concat"]


def frequencies(num_features: int, base: float = 10000.0) -> Float[Array, "f"]:
    """The frequency w_j = base^(-j / num_features), for even j, of each pair of features (sin x w_j, cos x w_j)."""
    even = jnp.arange(0, num_features, 2, dtype=jnp.result_type(float))
    return jnp.exp(-even * (math.log(base) / num_features))


def sinusoidal_features(x: Float[Array, "..."], num_features: int) -> Float[Array, "... c"]:
    """sin(x w_j) for even j, cos(x w_j) for odd j, w_j = 10000^(-2 floor(j / 2) / num_features).

    Interleaved: features 0 and 1 are the sine and cosine of the highest frequency (Alfons 2022, Algorithm 3).
    """
    angle = times(x[..., None], frequencies(num_features))
    return jnp.stack([jnp.sin(angle), jnp.cos(angle)], axis=-1).reshape(*x.shape, -1)[..., :num_features]


def features_per_dimension(num_features: int, num_dims: int, combine: Combine) -> int:
    """The number of features of each dimension: all of them if they are summed, else an equal share.

    Raises:
      ValueError: another `combine`, or a number of features that the dimensions cannot share equally.
    """
    if combine not in ("sum", "concat"):
        raise ValueError(f'combine="{combine}": expected "sum" or "concat"')
    if combine == "concat" and num_features % num_dims:
        raise ValueError(f'num_features={num_features}: combine="concat" needs a multiple of {num_dims} dimensions')
    return num_features // num_dims if combine == "concat" else num_features


def relative_sinusoids(
    grid_shape: Shape,
    num_features: int,
    combine: Combine = "concat",
    reference_shape: Shape | None = None,
    query_grid_shape: Shape | None = None,
) -> Float[Array, "..."]:
    """Sinusoidal features of every relative offset: [*R, num_features].

    Positions are counted 0 ... 2 S - 2 from the offset -(S - 1), as in the paper. With more than one dimension (ours;
    the paper has one) each dimension has its own features, which are summed or concatenated. With `reference_shape`
    the count starts at that grid's first offset, so that an offset keeps its features. For a query grid see
    `relative_offsets`.
    """
    reference = grid.check_reference(grid_shape, reference_shape)
    each = features_per_dimension(num_features, len(reference), combine)
    x = plus(grid.relative_offsets(grid_shape, query_grid_shape), np.subtract(reference, 1))
    features = sinusoidal_features(x.astype(jnp.result_type(float)), each)  # [*R, p, each]
    return features.sum(-2) if combine == "sum" else features.reshape(*features.shape[:-2], num_features)


def rotate(
    x: Query, grid_shape: Shape, base: float = 10000.0, place: Int[Array, ""] | None = None, num_class_tokens: int = 0
) -> Query:
    """R_t x_t: rotates features 2 j and 2 j + 1 of every position, a vector in the plane, by the angle w_j t.

      (a, b) -> (a cos w_j t - b sin w_j t, a sin w_j t + b cos w_j t),  w_j = base^(-2 j / d)

    If both sides of a product are rotated, it depends only on the offset: R_t q . R_s k = q . R_{s-t} k (Su 2021,
    equations 14 to 16). In p dimensions each one has d / p of the features, in order. They are rotated by the
    coordinate along that dimension, with d / p in place of d (axial: Heo 2024, equation 6, whose base is 100).

    Args:
      x: [b t h d], the positions of the grid in row-major order.
      grid_shape: S, one to three sizes; d must be a multiple of 2 p.
      base: the base of the frequencies, which are in radians per position.
      place: the place, in row-major order, of x [b 1 h d]; None: x has every place of the grid.
      num_class_tokens: the number of tokens in x before the grid. They have no place, and are not rotated.

    Returns:
      [b t h d] in the dtype of `x`, computed in float32 or better.

    Raises:
      ValueError: features that the dimensions cannot share in pairs, or a base that is not above 0.
    """
    shape = grid.check_grid(grid_shape)
    d, p = x.shape[-1], len(shape)
    if d % (2 * p):
        raise ValueError(f"head_dim={d}: rotary encodings of {p} dimensions need a multiple of {2 * p}")
    if base <= 0:
        raise ValueError(f"base={base}: expected more than 0")
    class_tokens, x = x[:, :num_class_tokens], x[:, num_class_tokens:]
    places = grid.positions(shape) if place is None else grid.coordinates(place, shape)[None]
    places = jnp.asarray(places, jnp.result_type(float))[..., None]
    angles = times(places, frequencies(d // p, base)).reshape(1, -1, 1, d // 2)  # [1 t 1 pairs]
    sin, cos = jnp.sin(angles), jnp.cos(angles)
    pairs = x.astype(float32_or_better(x.dtype)).reshape(*x.shape[:-1], d // 2, 2)
    a, b, sin, cos = same_dtype(pairs[..., 0], pairs[..., 1], sin, cos)
    turned = jnp.stack([a * cos - b * sin, a * sin + b * cos], -1).reshape(x.shape).astype(x.dtype)
    return jnp.concatenate([class_tokens, turned], 1)


def join_axes(parts: Sequence[Float[Array, "_ h _"]], grid_shape: Shape, combine: Combine) -> RelativeEncoding:
    """E [*R h d] from vectors T_i [R_i h d_i] of every dimension: E_o = [T_1[o_1]; ...; T_p[o_p]], or their sum."""
    p, along = len(parts), []
    for axis, part in enumerate(parts):
        part = part.reshape(*(-1 if i == axis else 1 for i in range(p)), *part.shape[1:])
        along.append(jnp.broadcast_to(part, (*grid.relative_shape(grid_shape), *part.shape[p:])))
    return jnp.concatenate(along, -1) if combine == "concat" else functools.reduce(jnp.add, along)


def axial_features(head_dim: int, num_dims: int, combine: Combine) -> int:
    """The d_i of `join_axes`; ValueError if the dimensions cannot share d equally, or for another `combine`."""
    if combine == "concat" and head_dim % num_dims:
        raise ValueError(f"head_dim={head_dim}: vectors of {num_dims} dimensions need a multiple of {num_dims}")
    return features_per_dimension(head_dim, num_dims, combine)


def within_table(table: Float[Array, "*limits h d"], grid_shape: Shape, reference_shape: Shape) -> RelativeEncoding:
    """The offsets of `grid_shape` in a table of the reference grid's offsets; ValueError for a larger grid."""
    if any(size > limit for size, limit in zip(grid_shape, reference_shape, strict=True)):
        raise ValueError(f"grid_shape={grid_shape}: expected at most {reference_shape}, the size of the learned table")
    return grid.centre(table, [size - 1 for size in grid_shape])


def of_kernel(table: Float[Array, "*k _ d"], grid_shape: Shape, outside: Outside, num_heads: int) -> RelativeEncoding:
    """E [*R h d] from vectors at the offsets of a kernel: [*K h d], or [*K 1 d] for all heads."""
    encoding = over_offsets(table, grid_shape, outside)
    return jnp.broadcast_to(encoding, (*encoding.shape[:-2], num_heads, encoding.shape[-1]))
