"""The differentiable attention span: a Gaussian over relative offsets and the box outside which nothing is attended.

Alfons 2022, section 3.6, equation 2 and Algorithms 6, 7, 10. Distances are normalised: x_i = offset_i / (S_i - 1).

sigma [p] or [h p] holds one standard deviation per dimension. sigma [1 p p] or [h p p] is the factor L of a full
covariance Sigma = L L^T (the paper's future work). L is lower triangular: entries above the diagonal are never read.
Only the magnitudes of standard deviations, and of the diagonal of L, matter.
"""

import bisect
import functools
import math
import operator
from collections.abc import Callable
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np

from posattn_jax.axes import Array, Bool, Float, Int, Num, RelativeBias, Shape, Sigma
from posattn_jax.ops import grid
from posattn_jax.ops.precision import aligned, as_array, float32_or_better, minus, times
from posattn_jax.system.compat import Tracer
from posattn_jax.system.errors import check

SpanMode = Literal["multiply", "log_add", "box"]
Covariance = Literal["diagonal", "log", "full", "precision"]

# |sigma| is at least this, so that sigma = 0 means "the query alone" and not 0 / 0; NaN passes through.
SIGMA_FLOOR = 1e-6
PRECISION_FLOOR = 1e-12  # likewise for 1 / sigma^2; below it there is no gradient
# Where the Gaussian is at one sigma: at this threshold sigma is half of the box's side.
BOX_THRESHOLD = math.exp(-0.5)
# Distances, in widths, of which a learned window need not know the difference.
FARTHEST = 30.0
LARGEST_POWER = 1e30  # of a distance: any larger one hides its key as well
NARROWEST = -60.0  # ln w of no more than this is the query alone
WIDTH = "more than 0, one number in units of S - 1"


def check_span(sigma: Array, threshold: float, span_mode: str, num_heads: int, num_dims: int) -> None:
    """ValueError for an invalid span; the values of sigma are checked only if they are concrete."""
    check_threshold(threshold)
    if span_mode not in get_args(SpanMode):
        raise ValueError(f'span_mode="{span_mode}": expected "multiply", "log_add" or "box"')
    h, p = num_heads, num_dims
    shapes = ((p,), (h, p), (1, p, p), (h, p, p))
    if sigma.shape not in shapes:
        raise ValueError(f"sigma has shape {sigma.shape}: expected {' or '.join(map(str, dict.fromkeys(shapes)))}")
    if not isinstance(sigma, Tracer):
        values = np.asarray(sigma)
        if not np.all(np.isfinite(values)) or np.any(_diagonal(values) == 0):
            other = ", other than 0 on the diagonal" if _is_factor(sigma) else " other than 0"
            raise ValueError(f"sigma={values.tolist()}: expected finite values{other}")


def of_precision(inverse_variance: Float[Array, "... p"]) -> Float[Array, "... p"]:
    """sigma = |a|^(-1/2), so that ln G = -1/2 sum_i |a_i| x_i^2.

    The gradient with respect to a does not vanish for wide spans; the one with respect to sigma fades with sigma^-3.
    """
    return jax.lax.rsqrt(jnp.maximum(jnp.abs(inverse_variance), PRECISION_FLOOR))


def check_threshold(threshold: float) -> None:
    """ValueError for a threshold that G never reaches."""
    check("threshold", threshold, lambda x: x < 1, "less than 1 (0 or less: no mask)")


def log_gaussian(coordinates: Float[Array, "... p"], sigma: Sigma) -> Float[Array, "..."]:
    """ln G = -1/2 sum_i x_i^2 / sigma_i^2, or -1/2 x^T Sigma^-1 x = -1/2 |L^-1 x|^2, for x [... p].

    Heads come first: [h ...] for sigma [h p] or [h p p].
    """
    # No sum over the last axis, which is too short to be fast. A sum of squares, so that G is at most 1 for any L.
    return -0.5 * functools.reduce(operator.add, map(jnp.square, _whitened(coordinates, sigma)))


def log_modulation(coordinates: Float[Array, "... p"], sigma: Sigma, span_mode: str) -> Float[Array, "..."]:
    """What a span of this mode does to scores, see `ops.scores`: ln G, or with "box" 0, where sigma is NaN too NaN."""
    return log_gaussian(coordinates, sigma) * exponent(span_mode)


def exponent(span_mode: str) -> float:
    """The power of G that changes the scores: 1, or 0 for a span that is a box alone."""
    return 0.0 if span_mode == "box" else 1.0


def precision(sigma: Sigma) -> Float[Array, "... m"]:
    """The coefficients c of ln G = -1/2 sum_m c_m x_i x_j, where (i, j) is the m-th of `pairs(sigma)`.

    c is 1 / sigma_i^2; or the diagonal of Sigma^-1, and twice the entries below it, which stand for both sides.
    """
    unit = jnp.eye(sigma.shape[-1], dtype=_float32_or_better(sigma).dtype)
    columns = jnp.stack(_whitened(unit, sigma), -1)  # of L^-1: [... j k], entry k of column j
    products = (jnp.sum(columns[..., i, :] * columns[..., j, :], -1) for i, j in pairs(sigma))
    return jnp.stack([c if i == j else 2 * c for c, (i, j) in zip(products, pairs(sigma), strict=True)], -1)


def pairs(sigma: Sigma) -> list[tuple[int, int]]:
    """The indices (i, j) of the products x_i x_j in ln G: only the squares, or all with j <= i."""
    return [(i, j) for i in range(sigma.shape[-1]) for j in (range(i + 1) if _is_factor(sigma) else (i,))]


def deviations(sigma: Sigma) -> Float[Array, "... p"]:
    """sqrt(Sigma_ii), the standard deviation along each dimension: |sigma_i|, or the length of row i of L."""
    sizes = jnp.abs(_float32_or_better(sigma))
    if not _is_factor(sigma):
        return sizes
    rows = ([sizes[..., i, j] for j in range(i + 1)] for i in range(sigma.shape[-1]))
    return jnp.stack([functools.reduce(_hypot, row) for row in rows], -1)


def _hypot(x: Array, y: Array) -> Array:
    """sqrt(x^2 + y^2), with gradients of 0 where both are 0; those of `jnp.hypot` are NaN there on jax 0.12."""
    zero = (x == 0) & (y == 0)
    return jnp.where(zero, 0, jnp.hypot(jnp.where(zero, 1, x), y))


def _whitened(x: Float[Array, "... p"], sigma: Sigma) -> list[Array]:
    """The p entries of z, with ln G = -1/2 |z|^2: z_i = x_i / |sigma_i|, or L z = x by forward substitution."""
    sigma = _float32_or_better(sigma)

    def against_x(entry):
        return entry.reshape(*entry.shape, *(1,) * (x.ndim - 1))

    inverse = 1 / jnp.maximum(jnp.abs(_diagonal(sigma)), SIGMA_FLOOR)
    z = []
    for i in range(x.shape[-1]):
        rest = x[..., i]
        if _is_factor(sigma):
            rest = functools.reduce(minus, (times(against_x(sigma[..., i, j]), z[j]) for j in range(i)), rest)
        z.append(times(rest, against_x(inverse[..., i])))
    return z


def _is_factor(sigma: Array | np.ndarray) -> bool:
    return sigma.ndim == 3


def _diagonal(sigma):
    """The standard deviations, or the diagonal of the factor: [... p]."""
    return sigma.diagonal(axis1=-2, axis2=-1) if _is_factor(sigma) else sigma


def _float32_or_better(sigma: Sigma) -> Sigma:
    """sigma in float32 or better: fewer bits cannot hold all positions."""
    return sigma.astype(float32_or_better(sigma))


def gaussian(grid_shape: Shape, sigma: Sigma, reference_shape: Shape | None = None) -> Float[Array, "..."]:
    """G = exp(-1/2 sum_i x_i^2 / sigma_i^2) at every relative offset: [*R], or [h, *R] for sigma [h p] or [h p p].

    G is 1 at the query itself and is not a density. Alfons 2022, equation 2 and Algorithm 7 (centred: as printed
    the algorithm's index is off by the difference between the span and the grid).

    Example:
      >>> import jax.numpy as jnp
      >>> from posattn_jax import gaussian
      >>> print(gaussian((3,), jnp.array([0.5])).round(2))
      [0.14 0.61 1.   0.61 0.14]
    """
    return jnp.exp(log_gaussian(grid.relative_coordinates(grid_shape, reference_shape), sigma))


def half_span(
    sigma: Sigma,
    threshold: float,
    grid_shape: Shape,
    reference_shape: Shape | None = None,
    query_grid_shape: Shape | None = None,
) -> Float[Array, "... p"]:
    """half_i = ceil(sqrt(-2 ln threshold) sqrt(Sigma_ii) (S_i - 1)), at most S_i - 1: the reach on each side.

    It is half the bounding box of the ellipse G = threshold, in positions, [p] or [h p]. Without a factor L,
    sqrt(Sigma_ii) is |sigma_i|. It is a float, so that NaN survives. It has no gradient, being a step function of
    sigma; sigma learns through G. With a query grid it is at most the largest of `grid.relative_offsets`, rounded up.
    """
    check_threshold(threshold)
    keys, queries = np.asarray(grid_shape), np.asarray(grid.check_query_grid(grid_shape, query_grid_shape))
    reach = np.ceil(keys - 0.5 - keys / (2 * queries))  # the last key from the first query: S - 1 on one grid
    deviation = jax.lax.stop_gradient(deviations(sigma))
    if threshold <= 0:
        return jnp.broadcast_to(jnp.asarray(reach, deviation.dtype), deviation.shape)
    unit = np.maximum(np.asarray(grid.check_reference(grid_shape, reference_shape)) - 1.0, 1)
    half = jnp.ceil(times(math.sqrt(-2 * math.log(threshold)) * deviation, unit.astype(deviation.dtype)))
    return jnp.minimum(*aligned(half, reach.astype(deviation.dtype)))


def window_sigma(half_span: Shape | int, reference_shape: Shape) -> Float[Array, "p"]:
    """The sigma whose box, at `BOX_THRESHOLD`, is `half_span` positions on each side.

    Raises:
      ValueError: unless there is a half-span of at least 1 for every dimension.
    """
    sizes, num_dims = (half_span,) if isinstance(half_span, int) else tuple(half_span), len(reference_shape)
    if len(sizes) != num_dims or min(sizes) < 1:
        example = (max((1, *sizes)),) * num_dims
        raise ValueError(f"half_span={half_span}: expected {num_dims} numbers of at least 1, such as {example}")
    unit = np.maximum(np.subtract(reference_shape, 1), 1)
    sigma = (np.array(sizes) - 0.5) / unit  # rounded up to half_span
    return as_array(sigma.astype(jnp.result_type(float)))


def log_window(
    log_profile: Callable[[Array], Array],
    log_width: Float[Array, "... p"],
    grid_shape: Shape,
    reference_shape: Shape | None = None,
    query_grid_shape: Shape | None = None,
) -> RelativeBias:
    """ln m at every relative offset, [*R h], of a window m = prod_i m(|x_i| / w_i); h is 1 for widths [p].

    Args:
      log_profile: ln m as a function of the distance in widths, which is 0 at the query. It may be -inf from 1 on.
      log_width: ln w, [p] or [h p], with w in units of S - 1.
      grid_shape, reference_shape, query_grid_shape: as in `relative_attention`.
    """
    coordinates = grid.relative_coordinates(grid_shape, reference_shape, query_grid_shape)
    log_width = _float32_or_better(jnp.atleast_2d(log_width))
    total = 0.0
    for i, widths in enumerate(jnp.moveaxis(log_width, -1, 0)):
        line = jnp.moveaxis(coordinates[..., i], i, 0)  # the same along the other dimensions
        line = line.reshape(len(line), -1)[:, :1]
        distance = jnp.minimum(times(jnp.abs(line), jnp.exp(-jnp.maximum(widths, NARROWEST))), FARTHEST)
        shape = [1] * coordinates.ndim
        shape[i], shape[-1] = distance.shape
        total = total + log_profile(distance).reshape(shape)
    return jnp.broadcast_to(total, (*coordinates.shape[:-1], len(log_width)))


def box_sigma(
    log_profile: Callable[[Array], Array],
    log_width: Float[Array, "... p"],
    reference_shape: Shape,
    query_grid_shape: Shape | None = None,
) -> Float[Array, "... p"]:
    """The sigma of the box of a window of `log_window`, at `BOX_THRESHOLD`.

    It is the width w. Where m is 0 at one width it is one position less, w - 1 / (S - 1): rounded up to whole
    positions, that is the farthest key nearer than w, or one position if there is none. With a query grid it is always
    w, because offsets between two grids need not be whole.
    """
    width = jnp.exp(_float32_or_better(log_width))
    if query_grid_shape is not None:
        return width
    position = jnp.asarray(1 / np.maximum(np.subtract(reference_shape, 1), 1), width.dtype)
    is_hidden = jnp.isneginf(log_profile(jnp.ones_like(width).T)).T
    return jnp.where(is_hidden, jnp.maximum(minus(width, position), SIGMA_FLOOR), width)


def _is_width(x: Any) -> bool:
    return not np.ndim(x) and 0 < x < math.inf


def check_sigma(initial_sigma: float) -> None:
    """ValueError for a Gaussian whose sigma cannot be learned from, or is no width."""
    check("initial_sigma", initial_sigma, _is_width, WIDTH)


def check_window(initial_width: float, ramp: float = 1.0, edge: float = 0.5, power: float = 1.0) -> None:
    """ValueError for a learned window whose width cannot be learned from, or whose form is none."""
    check("initial_width", initial_width, _is_width, WIDTH)
    check("ramp", ramp, lambda x: 0 < x <= 1, "a share of the width, more than 0 and at most 1")
    check("edge", edge, lambda x: 0 < x < 1, "more than 0 and less than 1")
    check("power", power, lambda x: 1 <= x < math.inf, "at least 1")


def log_ramp(distance: Float[Array, "..."], ramp: float) -> Float[Array, "..."]:
    """ln clamp((1 - r) / ramp, 0, 1) for distances r in widths (Sukhbaatar 2019, equation 2); -inf from 1 on."""
    inside = distance < 1
    left = jnp.where(inside, 1 - distance, ramp) / ramp
    return jnp.where(inside, jnp.log(jnp.minimum(left, 1.0)), -jnp.inf)


def log_flat(distance: Float[Array, "..."], edge: float, power: float) -> Float[Array, "..."]:
    """ln(edge) r^power for distances r in widths: m is 1 at the query and `edge` at one width."""
    # A power that overflows has no gradient but NaN.
    return math.log(edge) * jnp.minimum(distance, LARGEST_POWER ** (1 / power)) ** power


def span_size(
    sigma: Sigma, threshold: float, grid_shape: Shape, reference_shape: Shape | None = None
) -> Int[Array, "... p"]:
    """size_i = min(2 half_i + 1, 2 S_i - 1): the offsets inside the span (Alfons 2022, Algorithm 6).

    threshold <= 0 means no mask: every offset of the grid.

    Example:
      >>> import jax.numpy as jnp
      >>> from posattn_jax import span_size
      >>> print(span_size(jnp.array([0.1, 0.3]), threshold=0.1, grid_shape=(8, 8)))
      [ 5 11]
    """
    return (2 * half_span(sigma, threshold, grid_shape, reference_shape) + 1).astype(jnp.int32)


def inside_span(offsets: Num[Array, "... p"], half: Num[Array, "... p"]) -> Bool[Array, "..."]:
    """Whether |offset_i| <= half_i in every dimension (Algorithm 10), for offsets [... p]; [h, ...] for half [h p].

    A NaN half-span counts as inside, so that the NaN reaches the output instead of vanishing behind the mask.
    """
    if half.ndim == 2:
        half = half.reshape(half.shape[0], *(1,) * (offsets.ndim - 1), half.shape[1])
    return jnp.all(~jnp.greater(*aligned(jnp.abs(offsets), half)), axis=-1)


def span_share(sigma: Sigma, threshold: float) -> Float[Array, ""]:
    """The share of all pairs of places that are inside the span, in [0, 1]: prod_i r_i (2 - r_i).

    r_i = min(1, sqrt(-2 ln threshold) sqrt(Sigma_ii)) is the half-span as a share of the grid's side. The result is the
    limit for fine grids, and differentiable. As a penalty it makes spans shrink, and it measures their cost. With
    threshold <= 0, r_i is min(1, sqrt(Sigma_ii)), one standard deviation. The result is averaged over the heads of
    sigma.

    Example:
      >>> import jax.numpy as jnp
      >>> from posattn_jax import span_share
      >>> print(f"{span_share(jnp.array([0.1, 0.2]), threshold=0.1):.3f}")
      0.258
    """
    reach = math.sqrt(-2 * math.log(threshold)) if threshold > 0 else 1.0
    half = jnp.minimum(1.0, reach * deviations(sigma))
    return jnp.mean(jnp.prod(half * (2 - half), axis=-1))


def pair_share(half: Shape, grid_shape: Shape) -> float:
    """The share of all pairs of a grid's places that are within integer half-spans, counted exactly.

    Example:
      >>> from posattn_jax.ops.span import pair_share
      >>> pair_share((1,), (4,))  # 4 + 2 x 3 of 16
      0.625
    """
    near = [(min(h, size - 1), size) for h, size in zip(half, grid_shape, strict=True)]
    return math.prod((size * (2 * h + 1) - h * (h + 1)) / size**2 for h, size in near)


def bound_for(half: Shape, previous: Shape | None = None) -> tuple[int, ...]:
    """Static half-spans with room for `half` to grow: in each dimension the next larger of 1, 2, 3, 4, 6, 8, 12, ...

    `previous` is kept as long as it leaves one position of room and is at most one size too large, so that a span that
    fluctuates at a border does not change the bound back and forth. The bounds are integers on the host, because
    programs are compiled for them.
    """
    sizes = sorted([2**i for i in range(31)] + [3 * 2**i for i in range(30)])
    bounds = []
    for h, bound in zip(half, previous or [0] * len(half), strict=True):
        wanted = bisect.bisect_left(sizes, h + 1)
        bounds.append(bound if h + 1 <= bound <= sizes[wanted + 1] else sizes[wanted])
    return tuple(bounds)
