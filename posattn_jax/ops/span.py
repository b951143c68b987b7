"""The differentiable attention span: a Gaussian over relative offsets and the box outside which nothing is attended.

Alfons 2022, section 3.6, equation 2 and Algorithms 6, 7, 10. Distances are normalised: x_i = offset_i / (S_i - 1).
"""

import bisect
import functools
import math
import operator
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from posattn_jax.axes import Array, Bool, Float, Int, Shape, Sigma
from posattn_jax.ops import grid

SpanMode = Literal["multiply", "log_add"]

# |sigma| is floored here so that sigma = 0 means "the query alone" and not 0 / 0; NaN passes through.
SIGMA_FLOOR = 1e-6


def check_span(sigma: Array, threshold: float, span_mode: str, num_heads: int, num_dims: int) -> None:
    """ValueError for a span that means nothing; values of sigma are checked only where they are concrete."""
    check_threshold(threshold)
    if span_mode not in ("multiply", "log_add"):
        raise ValueError(f'span_mode="{span_mode}": expected "multiply" or "log_add"')
    if sigma.shape not in ((num_dims,), (num_heads, num_dims)):
        raise ValueError(f"sigma has shape {sigma.shape}: expected ({num_dims},) or ({num_heads}, {num_dims})")
    if not isinstance(sigma, jax.core.Tracer):
        values = np.asarray(sigma)
        if not np.all(np.isfinite(values)) or np.any(values == 0):
            raise ValueError(f"sigma={values.tolist()}: expected finite values other than 0")


def check_threshold(threshold: float) -> None:
    """ValueError for a threshold that G never reaches."""
    if threshold >= 1 or math.isnan(threshold):
        raise ValueError(f"threshold={threshold}: expected less than 1 (0 or less: no mask)")


def log_gaussian(coordinates: Float[Array, "... p"], sigma: Sigma) -> Float[Array, "..."]:
    """ln G = -1/2 sum_i x_i^2 / sigma_i^2, for x [... p] and sigma [p]; [h, ...] for sigma [h p]."""
    inverse = precision(sigma)
    if sigma.ndim == 2:
        inverse = inverse.reshape(sigma.shape[0], *(1,) * (coordinates.ndim - 1), sigma.shape[1])
    # Not a sum over the last axis, which is too short to be fast.
    squares = (jnp.square(coordinates[..., i]) * inverse[..., i] for i in range(coordinates.shape[-1]))
    return -0.5 * functools.reduce(operator.add, squares)


def precision(sigma: Sigma) -> Sigma:
    """1 / sigma^2."""
    return 1 / jnp.maximum(jnp.square(_float32_or_better(sigma)), SIGMA_FLOOR**2)


def _float32_or_better(sigma: Sigma) -> Sigma:
    """Positions do not fit into fewer bits."""
    return sigma.astype(jnp.result_type(jnp.float32, sigma))


def gaussian(grid_shape: Shape, sigma: Sigma, reference_shape: Shape | None = None) -> Float[Array, "..."]:
    """G = exp(-1/2 sum_i x_i^2 / sigma_i^2) at every relative offset: [*R], or [h, *R] for sigma [h p].

    G is 1 at the query itself and is not a density. Alfons 2022, equation 2 and Algorithm 7 (centred: as printed
    the algorithm's index is off by the difference between the span and the grid).
    """
    return jnp.exp(log_gaussian(grid.relative_coordinates(grid_shape, reference_shape), sigma))


def half_span(
    sigma: Sigma, threshold: float, grid_shape: Shape, reference_shape: Shape | None = None
) -> Float[Array, "... p"]:
    """half_i = ceil(sqrt(-2 ln threshold) |sigma_i| (S_i - 1)), at most S_i - 1: the reach on each side, in positions.

    A float, so that NaN survives. No gradient: the size is a step function of sigma, which learns through G.
    """
    check_threshold(threshold)
    reach = np.asarray(grid.check_grid(grid_shape)) - 1.0
    sigma = _float32_or_better(jax.lax.stop_gradient(sigma))
    if threshold <= 0:
        return jnp.broadcast_to(jnp.asarray(reach, sigma.dtype), sigma.shape)
    unit = np.asarray(grid.check_reference(grid_shape, reference_shape)) - 1.0
    half = jnp.ceil(math.sqrt(-2 * math.log(threshold)) * jnp.abs(sigma) * unit.astype(sigma.dtype))
    return jnp.minimum(half, reach.astype(sigma.dtype))


def span_size(
    sigma: Sigma, threshold: float, grid_shape: Shape, reference_shape: Shape | None = None
) -> Int[Array, "... p"]:
    """size_i = min(2 half_i + 1, 2 S_i - 1): the offsets inside the span (Alfons 2022, Algorithm 6).

    threshold <= 0 means no mask: every offset of the grid.
    """
    return (2 * half_span(sigma, threshold, grid_shape, reference_shape) + 1).astype(jnp.int32)


def inside_span(offsets: Int[Array, "... p"], half: Float[Array, "... p"]) -> Bool[Array, "..."]:
    """The box |offset_i| <= half_i in every dimension (Algorithm 10), for offsets [... p]; [h, ...] for half [h p].

    A NaN half-span counts as inside, so that the NaN reaches the output instead of vanishing behind the mask.
    """
    if half.ndim == 2:
        half = half.reshape(half.shape[0], *(1,) * (offsets.ndim - 1), half.shape[1])
    return jnp.all(~(jnp.abs(offsets) > half), axis=-1)


def span_share(sigma: Sigma, threshold: float) -> Float[Array, ""]:
    """The share of the relative grid inside the span, in [0, 1]: prod_i min(1, sqrt(-2 ln threshold) |sigma_i|).

    It is the limit of span_size / R on a fine grid, and differentiable: the penalty that makes spans shrink.
    With threshold <= 0 the share is that of one standard deviation. The mean over heads where sigma is [h p].
    """
    reach = math.sqrt(-2 * math.log(threshold)) if threshold > 0 else 1.0
    return jnp.mean(jnp.prod(jnp.minimum(1.0, reach * jnp.abs(sigma)), axis=-1))


def bound_for(half: Shape, previous: Shape | None = None) -> tuple[int, ...]:
    """Static half-spans with room for `half` to grow: the next of 1, 2, 3, 4, 6, 8, 12, 16, ... above it, a dimension.

    `previous` is kept for as long as it leaves a position of room and is not more than one size too large, so that a
    span that trembles at a border does not change it back and forth. Integers on the host: what they decide is
    compiled.
    """
    bounds = [None] * len(half) if previous is None else previous
    return tuple(_bound_for(h, bound) for h, bound in zip(half, bounds, strict=True))


def _bound_for(half: int, previous: int | None) -> int:
    sizes = sorted([2**i for i in range(31)] + [3 * 2**i for i in range(30)])
    wanted = bisect.bisect_left(sizes, half + 1)
    if previous is not None and half + 1 <= previous <= sizes[wanted + 1]:
        return previous
    return sizes[wanted]
