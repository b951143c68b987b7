"""Rotary encodings: features turned, two by two, by angles that grow with the position."""

import jax.numpy as jnp

from posattn_jax.axes import Query, Shape
from posattn_jax.ops import grid
from posattn_jax.ops.encodings import frequencies


def rotate(x: Query, grid_shape: Shape, base: float = 10000.0) -> Query:
    """R_t x_t: features 2 j and 2 j + 1 of every position as a vector in the plane, turned by an angle of its own.

      (a, b) -> (a cos w_j t - b sin w_j t, a sin w_j t + b cos w_j t),  w_j = base^(-2 j / d)

    Turning both sides of a product leaves what depends on the offset alone: R_t q . R_s k = q . R_{s-t} k (Su 2021,
    equations 14 to 16). In p dimensions each has d / p of the features, in order, turned by the coordinate along it
    and with d / p instead of d (axial: Heo 2024, equation 6, whose base is 100).

    Args:
      x: [b t h d], the positions of the grid in row-major order.
      grid_shape: S, one to three sizes; d is to be a multiple of 2 p.
      base: of the frequencies, in radians a position.

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
    places = jnp.asarray(grid.positions(shape), jnp.result_type(float))
    angles = (places[..., None] * frequencies(d // p, base)).reshape(-1, 1, d // 2)  # [t 1 pairs]
    sin, cos = jnp.sin(angles), jnp.cos(angles)
    pairs = x.astype(jnp.promote_types(jnp.float32, x.dtype)).reshape(*x.shape[:-1], d // 2, 2)
    a, b = pairs[..., 0], pairs[..., 1]
    return jnp.stack([a * cos - b * sin, a * sin + b * cos], -1).reshape(x.shape).astype(x.dtype)
