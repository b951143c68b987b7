"""Applies a function to every query's window of some arrays, one query at a time, in the backward pass too."""

import dataclasses
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from posattn_jax.axes import Array, Float, Sizes
from posattn_jax.ops import grid
from posattn_jax.ops.precision import float32_or_better, plus


@dataclasses.dataclass(frozen=True)
class Window:
    """The part of an array that each query uses.

    Attributes:
      axis: the first of the axes that the window is cut from.
      sizes: its sizes along these axes.
      first: where it begins along these axes for each query, [t len(sizes)].
    """

    axis: int
    sizes: Sizes
    first: np.ndarray

    def take(self, x: Array, first: Array) -> Array:
        """One query's window, with the axes that it is cut from joined into one."""
        end = self.axis + len(self.sizes)
        part = lax.dynamic_slice(x, self._start(x, first), (*x.shape[: self.axis], *self.sizes, *x.shape[end:]))
        return part.reshape(*x.shape[: self.axis], math.prod(self.sizes), *x.shape[end:])

    def add(self, x: Array, first: Array, part: Array) -> Array:
        """Adds `part` to `x` where `take` took it from."""
        end = self.axis + len(self.sizes)
        start = self._start(x, first)
        part = part.reshape(*x.shape[: self.axis], *self.sizes, *x.shape[end:])
        return lax.dynamic_update_slice(x, plus(lax.dynamic_slice(x, start, part.shape), part), start)

    def _start(self, x, first):
        return (*(0 for _ in range(self.axis)), *first, *(0 for _ in x.shape[self.axis + len(self.sizes) :]))


class GridWindows:
    """The windows of every query of a grid S, for keys at most `half` away in each dimension.

    A window has W_i = min(2 half_i + 1, S_i) keys in dimension i, the same number for every query. At a border it is
    moved inside, so it reaches up to W - 1 positions far: offsets run from -(W - 1) to W - 1.
    """

    def __init__(self, grid_shape: Sizes, half: Sizes):
        self.grid_shape = grid_shape
        self.num_positions = grid.num_positions(grid_shape)
        where, shape, reach = grid.positions(grid_shape), np.array(grid_shape), np.array(half)
        sizes = np.minimum(2 * reach + 1, shape)
        self._keys = np.clip(where - reach, 0, shape - sizes)
        self._offsets = self._keys - where + sizes - 1
        self._sizes = tuple(int(size) for size in sizes)
        self._padding = [(int(pad), int(pad)) for pad in sizes - 1 - reach]

    def by_key(self) -> Window:
        """The window of inputs [b *S ...]: the keys."""
        return Window(1, self._sizes, self._keys)

    def by_query(self) -> Window:
        """The window of an array [b t ...]: the query itself."""
        return Window(1, (1,), np.arange(self.num_positions)[:, None])

    def keys(self) -> np.ndarray:
        """The row-major indices of the keys in every query's window, [t w]."""
        return (self._keys[:, None] + grid.positions(self._sizes)) @ grid.strides(self.grid_shape)

    def by_pair(self, axis: int) -> Window:
        """The window of an array whose axis `axis` is the queries, followed by the grid of keys."""
        queries = np.arange(self.num_positions)[:, None]
        return Window(axis, (1, *self._sizes), np.concatenate([queries, self._keys], -1))

    def by_offset(self) -> Window:
        """The window of a table that `padded` returned."""
        return Window(0, self._sizes, self._offsets)

    def whole(self, size: int) -> Window:
        """The window of an array that every query uses whole, of size `size` along its first axis."""
        return Window(0, (size,), np.zeros((self.num_positions, 1), int))

    def padded(self, table: Float[Array, "..."]) -> Float[Array, "..."]:
        """Pads a table of offsets [2 half + 1 ...] with zeros for larger offsets: [2 W - 1 ...]."""
        return jnp.pad(table, self._padding + [(0, 0)] * (table.ndim - len(self._padding)))


def map_queries(function: Callable, windows: Sequence[Window], arrays: Sequence[Array]) -> Float[Array, "t ..."]:
    """Applies `function` to the windows of every query, and stacks the results.

    Windows and the intermediates of `function` are in memory for one query at a time only; the backward pass computes
    them again. Gradients are summed in float32 or better. There are no forward-mode derivatives.
    """
    firsts = tuple(window.first for window in windows)  # NumPy, not traced: the backward pass may be in another trace

    def take(arrays, first):
        return [window.take(x, i) for window, x, i in zip(windows, arrays, first, strict=True)]

    def forward(arrays):
        return lax.scan(lambda _, first: (None, function(*take(arrays, first))), None, firsts)[1]

    def backward(arrays, cotangents):
        def add_one(totals, query):
            first, cotangent = query
            parts = jax.vjp(function, *take(arrays, first))[1](cotangent)
            return [w.add(x, i, part) for w, x, i, part in zip(windows, totals, first, parts, strict=True)], None

        totals = [jnp.zeros(x.shape, float32_or_better(x.dtype)) for x in arrays]
        totals = lax.scan(add_one, totals, (firsts, cotangents))[0]
        return ([total.astype(x.dtype) for total, x in zip(totals, arrays, strict=True)],)

    mapped = jax.custom_vjp(forward)
    mapped.defvjp(lambda arrays: (forward(arrays), arrays), backward)
    return mapped(list(arrays))
