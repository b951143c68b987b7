"""Cuts a grid into tiles of queries, and finds the keys, and their offsets, that each tile meets (is scored with)."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from posattn_jax.axes import Array, Shape, Sizes
from posattn_jax.ops import grid
from posattn_jax.ops.attention.xla.loop import examples, heads_at_once, score_bytes
from posattn_jax.ops.kernels import relative_shift
from posattn_jax.ops.precision import plus

# Queries per tile. With fewer, a window has fewer keys outside of the span; with more, products are larger.
TILE_QUERIES = 16
# If the span is known only at run time: the half-spans that windows are made for, by the number of dimensions.
WINDOW_HALVES = {1: (8, 24, 56, 120), 2: (2, 4, 8), 3: (1, 2, 4)}
# The cost of a step apart from its scores, in pairs per query.
STEP_COST = 32
# The time per pair of "tiled", relative to that of "dense", by the number of dimensions; with and without the backward
# pass it is about the same. Source: `benchmarks/results/cpu/attention/`, measured on 2 CPU cores by
# `python -m posattn_jax.benchmarks.attention --backward`.
PAIR_COST = {1: 0.65, 2: 1.0, 3: 0.8}


@dataclasses.dataclass(frozen=True)
class Tiling:
    """A grid of queries cut into groups of tiles.

    It is not `Rows`: a tile is short in every dimension, so that its window of keys, a copy, has few keys that no span
    reaches.

    Attributes:
      grid_shape: S, the grid of the keys.
      query_shape: the grid of the queries, which may be some rows of S.
      tile: the number of queries per tile, in each dimension.
      window: the number of keys that a tile meets at once, likewise.
      group: the number of tiles that are computed at once, likewise.
    """

    grid_shape: Sizes
    query_shape: Sizes
    tile: Sizes
    window: Sizes
    group: Sizes

    def steps(self, reach: Any) -> list:
        """The number of windows, in each dimension, that cover the keys within `reach` positions of a tile."""
        return [-(-(t + 2 * r) // w) for t, r, w in zip(self.tile, reach, self.window, strict=True)]

    def pairs(self, reach: Any):
        """The number of query-key pairs that are computed for a half-span of `reach`, including those off the grid."""
        queries = math.prod(m * g * t for m, g, t in zip(self.groups, self.group, self.tile, strict=True))
        steps = math.prod(self.steps(reach))
        return float(queries * math.prod(self.window)) * (steps if isinstance(steps, int) else steps.astype(float))

    def cost(self, reach: Any):
        """The expected time for a half-span of `reach`, in pairs of "dense": computed pairs, and overhead per step."""
        return PAIR_COST[len(self.tile)] * self.pairs(reach) * (1 + STEP_COST / math.prod(self.window))

    @property
    def groups(self) -> Sizes:
        """The number of groups, in each dimension, that cover the queries."""
        return tuple(-(-s // (t * g)) for s, t, g in zip(self.query_shape, self.tile, self.group, strict=True))

    @property
    def origins(self) -> np.ndarray:
        """The position of the first query of each group, among the queries: [groups, p]."""
        return grid.positions(self.groups) * np.multiply(self.tile, self.group)

    @property
    def starts(self) -> np.ndarray:
        """The position of the first query of each tile, relative to the first query of its group: [tiles, p]."""
        return grid.positions(self.group) * np.array(self.tile)

    @property
    def relative(self) -> np.ndarray:
        """Key minus query, counted from the start of the window and of the tile: [tile, window, p]."""
        return grid.positions(self.window) - grid.positions(self.tile)[:, None]

    def queries(self, x: Array) -> Array:
        """[b h *S d] -> [groups, b, h, tiles, queries, d], padded with 0."""
        b, h, *_, d = x.shape
        sizes = list(zip(self.groups, self.group, self.tile, self.query_shape, strict=True))
        x = jnp.pad(x, [(0, 0)] * 2 + [(0, m * g * t - s) for m, g, t, s in sizes] + [(0, 0)])
        x = x.reshape(b, h, *(size for m, g, t, _ in sizes for size in (m, g, t)), d)
        axes = [[2 + 3 * i + part for i in range(len(sizes))] for part in range(3)]
        x = x.transpose(*axes[0], 0, 1, *axes[1], *axes[2], x.ndim - 1)
        return x.reshape(math.prod(self.groups), b, h, math.prod(self.group), math.prod(self.tile), d)

    def grid(self, x: Array) -> Array:
        """The inverse of `queries`: [groups, b, h, tiles, queries, d] -> [b h *S d]."""
        _, b, h, _, _, d = x.shape
        p = len(self.tile)
        x = x.reshape(*self.groups, b, h, *self.group, *self.tile, d)
        axes = (part + i for i in range(p) for part in (0, p + 2, 2 * p + 2))
        x = x.transpose(p, p + 1, *axes, x.ndim - 1)
        x = x.reshape(b, h, *(m * g * t for m, g, t in zip(self.groups, self.group, self.tile, strict=True)), d)
        return x[:, :, *(slice(size) for size in self.query_shape)]

    def wrap(self, x: Array) -> Array:
        """[b h *S d] -> [b h d *S], with its start repeated after its end: a window may start anywhere modulo S."""
        x = jnp.moveaxis(x, -1, 2)
        return jnp.pad(x, [(0, 0)] * 3 + [(0, size - 1) for size in self.window], mode="wrap")

    def windows(self, wrapped: Array, first: Array) -> Array:
        """The window of each tile of a group, where the first tile's starts at `first`: [b, h, tiles, d, keys]."""
        b, h, d, *_ = wrapped.shape
        starts = plus(first, self.starts) % np.array(self.grid_shape)[None]
        take = jax.vmap(
            lambda start: lax.dynamic_slice(wrapped, (0, 0, 0, *start), (b, h, d, *self.window)), out_axes=2
        )
        return take(starts).reshape(b, h, len(starts), d, math.prod(self.window))

    def add_windows(self, wrapped: Array, windows: Array, first: Array) -> Array:
        """The transpose of `windows`: adds every tile's window to where it was taken from."""
        b, h, d, *_ = wrapped.shape
        p = len(self.tile)
        starts = plus(first, self.starts) % np.array(self.grid_shape)[None]
        dimensions = lax.ScatterDimensionNumbers(
            update_window_dims=(0, 1, *range(3, 4 + p)),
            inserted_window_dims=(),
            scatter_dims_to_operand_dims=tuple(range(3, 3 + p)),
        )
        windows = windows.reshape(b, h, len(starts), d, *self.window)
        return lax.scatter_add(wrapped, starts, windows, dimensions, mode="promise_in_bounds")

    def toeplitz(self, offsets: Array) -> Array:
        """From offsets to pairs of a tile and its window: [*(t + w - 1) h d] -> [h, queries, keys, d]."""
        *_, h, d = offsets.shape
        p = len(self.tile)
        for axis, t in enumerate(self.tile):
            shape = (*offsets.shape[: 2 * axis], t, *offsets.shape[2 * axis :])
            offsets = relative_shift(jnp.broadcast_to(jnp.expand_dims(offsets, 2 * axis), shape), axis=2 * axis)
        offsets = offsets.transpose(2 * p, *range(0, 2 * p, 2), *range(1, 2 * p, 2), 2 * p + 1)
        return offsets.reshape(h, math.prod(self.tile), math.prod(self.window), d)


def tile_sizes(grid_shape: Sizes) -> Sizes:
    """A tile of about `TILE_QUERIES` queries, as cubic as the grid allows and longer in the last dimensions."""
    tile = [1] * len(grid_shape)
    while math.prod(tile) < TILE_QUERIES:
        growing = [i for i, size in enumerate(grid_shape) if tile[i] < size]
        if not growing:
            break
        axis = min(growing, key=lambda i: (tile[i], -i))
        tile[axis] *= 2
    return tuple(tile)


def tilings(
    grid_shape: Sizes,
    batch: int,
    num_heads: int,
    itemsize: int,
    static_half: Shape | None,
    query_shape: Sizes | None = None,
) -> list[tuple[Tiling, int]]:
    """The tilings to choose from, each with the number of heads to compute at once; a single one if `static_half`.

    A window holds the keys that one tile meets within a half-span. With `static_half` that is the half-span, and the
    window is cut into pieces if it has too many scores. Otherwise there is a window for each of `WINDOW_HALVES` that
    the grid is large enough for.
    """
    budget, batch = score_bytes(), examples(batch)
    query_shape = query_shape or grid_shape
    tile = tile_sizes(query_shape)

    def reached(half):
        return tuple(t + 2 * min(h, s - 1) for t, h, s in zip(tile, half, grid_shape, strict=True))

    if static_half is None:
        largest = max(grid_shape) - 1
        halves = WINDOW_HALVES[len(grid_shape)]
        halves = [half for i, half in enumerate(halves) if i == 0 or halves[i - 1] < largest]
        windows = [reached([half] * len(tile)) for half in halves]
    else:
        windows = [list(reached(static_half))]
        while batch * math.prod(tile) * math.prod(windows[0]) * itemsize > max(budget, 2**20):
            axis = int(np.argmax(windows[0]))
            windows[0][axis] = -(-windows[0][axis] // 2)
        windows = [tuple(windows[0])]

    chosen = []
    for window in windows:
        room = max(1, budget // (batch * math.prod(tile) * math.prod(window) * itemsize))
        group = []
        for size, t in zip(reversed(query_shape), reversed(tile), strict=True):
            tiles = -(-size // t)
            parts = -(-tiles // min(room, tiles))
            group.insert(0, -(-tiles // parts))
            room = max(1, room // group[0])
        chosen.append((Tiling(grid_shape, query_shape, tile, window, tuple(group)), heads_at_once(num_heads, room)))
    return chosen
