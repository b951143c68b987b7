"""Positions on an n-D grid, their offsets in positions and in normalised units, and arrays that they index."""

import math
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.export import is_symbolic_dim

from posattn_jax.axes import Array, Bool, Causal, Coordinates, Float, Int, Num, Offsets, Shape
from posattn_jax.ops.precision import aligned
from posattn_jax.system.compat import Tracer

MAX_DIMS = 3


def check_grid(grid_shape: Shape, name: str = "grid_shape") -> tuple[int, ...]:
    """Returns `grid_shape` as a tuple; ValueError unless it is one to three sizes of at least 1."""
    if isinstance(grid_shape, Tracer) or any(isinstance(size, Tracer) for size in _sizes(grid_shape)):
        raise ValueError(
            f"{name} is traced: expected plain numbers, closed over or static arguments of the jitted function"
        )
    if any(is_symbolic_dim(size) for size in _sizes(grid_shape)):
        raise ValueError(
            f"{name}={tuple(grid_shape)} has a symbolic size: expected plain numbers; the batch may have one"
        )
    if getattr(grid_shape, "ndim", 1) != 1 or not len(_sizes(grid_shape)):
        raise ValueError(f"{name} is {_shown(grid_shape)}: expected one to {MAX_DIMS} sizes, such as (16, 12)")
    given = tuple(grid_shape)
    try:
        shape = tuple(map(int, given))
    except (TypeError, ValueError, OverflowError):  # such as a text, NaN or inf
        shape = ()
    if not 1 <= len(shape) <= MAX_DIMS or min(shape) < 1 or shape != given:
        raise ValueError(f"{name}={given}: expected one to {MAX_DIMS} sizes, whole numbers of at least 1")
    return shape


def _sizes(grid_shape: Any) -> tuple[Any, ...]:
    """The sizes in a sequence; () if it is not a sequence."""
    return () if not hasattr(grid_shape, "__len__") or getattr(grid_shape, "ndim", 1) != 1 else tuple(grid_shape)


def _shown(grid_shape: Any) -> str:
    return f"an array of shape {grid_shape.shape}" if getattr(grid_shape, "ndim", 0) else repr(grid_shape)


def check_reference(grid_shape: Shape, reference_shape: Shape | None) -> tuple[int, ...]:
    """Returns the grid whose S - 1 normalises offsets: `reference_shape`, or the grid itself where it is None."""
    grid_shape = check_grid(grid_shape)
    if reference_shape is None:
        return grid_shape
    reference = check_grid(reference_shape, "reference_shape")
    if len(reference) != len(grid_shape):
        raise ValueError(f"reference_shape={reference}: expected {len(grid_shape)} sizes, as grid_shape={grid_shape}")
    if any(r == 1 and size > 1 for r, size in zip(reference, grid_shape, strict=True)):
        raise ValueError(
            f"reference_shape={reference}: expected more than 1 where grid_shape={grid_shape} is more than 1"
        )
    return reference


def check_query_grid(grid_shape: Shape, query_grid_shape: Shape | None) -> tuple[int, ...]:
    """Returns the grid of the queries: `query_grid_shape`, or that of the keys where it is None."""
    keys = check_grid(grid_shape)
    queries = keys if query_grid_shape is None else check_grid(query_grid_shape, "query_grid_shape")
    if len(queries) != len(keys):
        raise ValueError(f"query_grid_shape={queries}: expected {len(keys)} sizes, as grid_shape={keys}")
    return queries


def num_positions(grid_shape: Shape) -> int:
    """N = prod(S)."""
    return math.prod(check_grid(grid_shape))


def relative_shape(grid_shape: Shape, query_grid_shape: Shape | None = None) -> tuple[int, ...]:
    """R = 2 S - 1: the `relative_offsets` of each dimension (Alfons 2022, section 3.5, RelativeSize)."""
    if query_grid_shape is None:
        return tuple(2 * size - 1 for size in check_grid(grid_shape))
    return tuple(len(offsets) for offsets, _ in _lines(grid_shape, query_grid_shape))


def positions(grid_shape: Shape) -> np.ndarray:
    """The coordinates of every position, row-major: integers of shape [N, p]."""
    shape = check_grid(grid_shape)
    return np.stack([axis.ravel() for axis in np.indices(shape)], axis=-1)


def coordinates(places: Int[Array, "..."], grid_shape: Shape) -> Int[Array, "... p"]:
    """The coordinates of places in row-major order; along the first dimension places may be off the grid."""
    along = [places // int(stride) for stride in strides(grid_shape)]
    return jnp.stack([along[0], *map(operator.mod, along[1:], grid_shape[1:])], -1)


def strides(grid_shape: Shape) -> np.ndarray:
    """The distance, in row-major order, of neighbours along each dimension: position = coordinates . strides."""
    return np.cumprod([1, *check_grid(grid_shape)[:0:-1]])[::-1]


def pair_offsets(grid_shape: Shape, query_grid_shape: Shape | None = None) -> np.ndarray:
    """s - a_t for every pair, [t s p], of queries and keys on one grid, or on two grids of the same extent.

      a_t = (t + 1/2) S / T - 1/2,  T the queries' grid and S the keys'

    A place is the centre of its cell of the grid; a_t is the position of query t in the coordinates of the keys.
    """
    queries = check_query_grid(grid_shape, query_grid_shape)
    t, s = positions(queries)[:, None], positions(grid_shape)
    twice = 2 * np.asarray(queries)
    # A single division, of integers: equal offsets then get equal floats, and integer offsets are exact.
    return (twice * s - (2 * t + 1) * np.asarray(grid_shape) + np.asarray(queries)) / twice


def _lines(grid_shape: Shape, query_grid_shape: Shape) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each dimension, its distinct offsets in order, and the index of each pair's offset among them, [t s]."""
    lines = []
    for keys, queries in zip(grid_shape, check_query_grid(grid_shape, query_grid_shape), strict=True):
        offsets = pair_offsets((keys,), (queries,))[..., 0]
        found, which = np.unique(offsets, return_inverse=True)
        lines.append((found, which.reshape(offsets.shape)))
    return lines


def relative_offsets(grid_shape: Shape, query_grid_shape: Shape | None = None) -> Offsets:
    """Every offset key - query of the grid: [*R, p] integers, from -(S - 1) to S - 1 in each dimension.

    With a query grid: the distinct real-valued offsets of `pair_offsets`, in positions of the keys' grid.
    """
    if query_grid_shape is None:
        axes, dtype = [np.arange(-(size - 1), size) for size in check_grid(grid_shape)], jnp.int32
    else:
        axes, dtype = [offsets for offsets, _ in _lines(grid_shape, query_grid_shape)], jnp.result_type(float)
    return jnp.asarray(np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1), dtype)


def offsets_within(bound: Shape) -> Offsets:
    """Every offset of at most `bound` in each dimension: [*(2 bound + 1), p] integers."""
    return relative_offsets(tuple(most + 1 for most in bound))


def normalise(
    offsets: Array | np.ndarray, grid_shape: Shape, reference_shape: Shape | None = None
) -> Float[Array, "..."]:
    """x = offset / (S - 1), where S is `reference_shape` or the grid; in a dimension of size 1 x = offset.

    `offsets` [... p] may have any leading axes.
    """
    reference = check_reference(grid_shape, reference_shape)
    units = np.maximum(np.asarray(reference) - 1, 1)
    return jnp.divide(*aligned(jnp.asarray(offsets, jnp.result_type(float)), units))


def relative_coordinates(
    grid_shape: Shape, reference_shape: Shape | None = None, query_grid_shape: Shape | None = None
) -> Coordinates:
    """Normalised offsets [*R, p]: linspace(-1, 1, 2 S - 1) in each dimension (Alfons 2022, Algorithm 5).

    With `reference_shape` the unit of length is that grid's. A model trained on it then keeps its meaning of distance
    on a larger grid, where coordinates reach beyond [-1, 1]. For a query grid see `relative_offsets`.
    """
    return normalise(relative_offsets(grid_shape, query_grid_shape), grid_shape, reference_shape)


def not_after(offsets: Num[Array, "... p"], is_causal: Causal = True) -> Bool[Array, "..."]:
    """Whether s <= t in row-major order, for offsets s - t: the first that is not 0 is negative, or all are 0.

    With one bool of `is_causal` per dimension: whether no causal dimension has a positive offset.
    """
    if not isinstance(is_causal, bool):
        return jnp.all(jnp.logical_or(*aligned(offsets <= 0, ~np.array(is_causal))), -1)
    after = jnp.zeros(offsets.shape[:-1], bool)
    for axis in reversed(range(offsets.shape[-1])):
        after = jnp.where(offsets[..., axis] == 0, after, offsets[..., axis] > 0)
    return ~after


def check_dilation(dilation: Shape, grid_shape: Shape) -> None:
    """ValueError unless there is a step of at least 1 for each dimension."""
    if isinstance(dilation, int) or len(dilation) != len(grid_shape) or min(dilation) < 1:
        given = dilation if isinstance(dilation, int) else tuple(dilation)
        raise ValueError(f"dilation={given}: expected {len(grid_shape)} steps of at least 1, one per dimension")


def check_causal(is_causal: Causal, num_dims: int) -> Causal:
    """Returns a single bool if that is enough, else one per dimension; ValueError for another number or an array."""
    if isinstance(is_causal, bool | np.bool_):
        return bool(is_causal)
    each = tuple(bool(one) for one in _sizes(is_causal))
    if len(each) != num_dims:
        given = each or is_causal
        raise ValueError(f"is_causal={given}: expected a bool, or {num_dims}, one per dimension of grid_shape")
    return each if any(each) and num_dims > 1 else any(each)


def centre(table: Array, half: Shape) -> Array:
    """Cuts a table over offsets, with 0 in its middle, to those of at most `half`: [*R ...] -> [*(2 half + 1) ...]."""
    middle = [size // 2 for size in table.shape[: len(half)]]
    return table[tuple(slice(m - reach, m + reach + 1) for m, reach in zip(middle, half, strict=True))]


def take_patches(values: Array, starts: np.ndarray, size: Shape) -> Array:
    """[*S, ...] -> [n, prod(size), ...]: the block of `size` that begins at each of `starts` [n p]."""
    rest = values.shape[len(size) :]
    patches = jax.vmap(lambda start: lax.dynamic_slice(values, (*start, *(0 for _ in rest)), (*size, *rest)))
    return patches(jnp.asarray(starts)).reshape(len(starts), math.prod(size), *rest)


def toeplitz(values: Array, grid_shape: Shape, query_grid_shape: Shape | None = None) -> Array:
    """P[t, s] = values[s - t] (Alfons 2022, Algorithm 9), values at `relative_offsets`: [*R, ...] -> [t, s, ...].

    The patch of query t starts at S - 1 - t: the query axes are reversed. The paper's step 2, as printed, would index
    out of range.
    """
    shape = check_grid(grid_shape)
    if query_grid_shape is not None:
        return _of_lines(values, shape, query_grid_shape)
    return take_patches(values, np.asarray(shape) - 1 - positions(shape), shape)


def _of_lines(values: Array, grid_shape: Shape, query_grid_shape: Shape) -> Array:
    """`toeplitz` for two grids, one dimension after the other: [... R_i ...] -> [... t_i s_i ...]."""
    p = len(grid_shape)
    for axis, (_, which) in enumerate(_lines(grid_shape, query_grid_shape)):
        values = jnp.take(values, which, axis=2 * axis)
    values = values.transpose(*range(0, 2 * p, 2), *range(1, 2 * p, 2), *range(2 * p, values.ndim))
    return values.reshape(num_positions(query_grid_shape), num_positions(grid_shape), *values.shape[2 * p :])
