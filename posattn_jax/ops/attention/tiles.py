"""Cutting a grid into tiles of queries, and the keys and offsets that each tile meets. Slices and reshapes, no gather.

Every function works on the p positional axes that follow `lead` other axes, and is linear where it moves features, so
that its transpose is again slices and sums.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from posattn_jax.axes import Array

Sizes = tuple[int, ...]


def _gathered(lead: int, p: int) -> list[int]:
    """The order of axes that brings [..., a_1, b_1, ..., a_p, b_p] to [..., a_1 ... a_p, b_1 ... b_p]."""
    return [*range(lead), *range(lead, lead + 2 * p, 2), *range(lead + 1, lead + 2 * p, 2)]


@dataclasses.dataclass(frozen=True)
class Tiling:
    """A grid S cut into groups of tiles of queries.

    Attributes:
      grid_shape: S.
      tile: queries of a tile, in each dimension.
      window: keys that a tile meets at once.
      group: tiles that are computed at once.
    """

    grid_shape: Sizes
    tile: Sizes
    window: Sizes
    group: Sizes

    @property
    def groups(self) -> Sizes:
        """The groups that cover the grid."""
        return tuple(-(-s // (t * g)) for s, t, g in zip(self.grid_shape, self.tile, self.group, strict=True))

    @property
    def origins(self) -> np.ndarray:
        """The position of the first query of each group: [groups, p]."""
        where = np.stack(np.unravel_index(np.arange(math.prod(self.groups)), self.groups), -1)
        return where * np.multiply(self.tile, self.group)

    @property
    def starts(self) -> np.ndarray:
        """The position of the first query of each tile of a group, from that of the group: [tiles, p]."""
        where = np.stack(np.unravel_index(np.arange(math.prod(self.group)), self.group), -1)
        return where * np.array(self.tile)

    @property
    def relative(self) -> np.ndarray:
        """Key minus query, both counted from the start of the window and of the tile: [tile, window, p]."""
        queries = np.stack(np.unravel_index(np.arange(math.prod(self.tile)), self.tile), -1)
        keys = np.stack(np.unravel_index(np.arange(math.prod(self.window)), self.window), -1)
        return keys - queries[:, None]

    def queries(self, x: Array) -> Array:
        """[b h *S d] -> [groups, b, h, tiles, queries, d], the padding 0."""
        b, h, *_, d = x.shape
        sizes = list(zip(self.groups, self.group, self.tile, self.grid_shape, strict=True))
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
        axes = [axis for i in range(p) for axis in (i, p + 2 + i, 2 * p + 2 + i)]
        x = x.transpose(p, p + 1, *axes, x.ndim - 1)
        x = x.reshape(b, h, *(m * g * t for m, g, t in zip(self.groups, self.group, self.tile, strict=True)), d)
        return x[(slice(None), slice(None), *(slice(size) for size in self.grid_shape))]

    def wrap(self, x: Array) -> Array:
        """[b h *S d] with its beginning repeated behind its end: a window may start at any position modulo S."""
        return jnp.pad(x, [(0, 0)] * 2 + [(0, size - 1) for size in self.window] + [(0, 0)], mode="wrap")

    def windows(self, wrapped: Array, first: Array) -> Array:
        """The window of each tile of a group, the first tile's starting at `first`: [b, h, tiles, keys, d]."""
        b, h, *_, d = wrapped.shape
        starts = (first + self.starts) % np.array(self.grid_shape)
        take = jax.vmap(
            lambda start: lax.dynamic_slice(wrapped, (0, 0, *start, 0), (b, h, *self.window, d)), out_axes=2
        )
        return take(starts).reshape(b, h, len(starts), math.prod(self.window), d)

    def pairs(self, offsets: Array) -> Array:
        """From offsets to pairs of a tile and its window: [*(t + w - 1) h d] -> [h, queries, keys, d]."""
        *_, h, d = offsets.shape
        p = len(self.tile)
        for axis, (t, w) in enumerate(zip(self.tile, self.window, strict=True)):
            offsets = toeplitz(offsets, 2 * axis, t, w)
        offsets = offsets.transpose(2 * p, *_gathered(0, p), 2 * p + 1)
        return offsets.reshape(h, math.prod(self.tile), math.prod(self.window), d)


def toeplitz(x: Array, axis: int, rows: int, columns: int) -> Array:
    """out[..., i, j, ...] = x[..., j - i + rows - 1, ...], for an axis of rows + columns - 1 entries.

    Of `rows` copies laid end to end, entry i (length - 1) + j + rows - 1 is the one: drop the first rows - 1, and
    fold into rows one shorter.
    """
    length = rows + columns - 1
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    copies = jnp.broadcast_to(jnp.expand_dims(x, axis), (*before, rows, length, *after))
    if rows == 1:
        return copies
    flat = copies.reshape(*before, rows * length, *after)
    flat = lax.slice_in_dim(flat, rows - 1, rows - 1 + rows * (length - 1), axis=axis)
    folded = flat.reshape(*before, rows, length - 1, *after)
    return lax.slice_in_dim(folded, 0, columns, axis=axis + 1)


def choose_tiling(problem) -> tuple[Tiling, int]:
    """TEMP"""
    import os
    cfg = os.environ.get("TILING")
    shape = problem.grid_shape
    b, n, h, d = problem.query.shape
    tile = {1: (16,), 2: (4, 4), 3: (2, 2, 4)}[len(shape)]
    if cfg:
        tile = eval(cfg)[0]
    if problem.static_half is not None:
        window = tuple(t + 2 * r for t, r in zip(tile, problem.static_half))
    else:
        window = eval(cfg)[1] if cfg else {1: (64,), 2: (12, 12), 3: (4, 4, 8)}[len(shape)]
    budget = int(os.environ.get("BUDGET", 2**20))
    tiles = [-(-s // t) for s, t in zip(shape, tile)]
    per_tile = b * math.prod(tile) * math.prod(window) * problem.dtype.itemsize
    room = max(1, budget // per_tile)
    group = []
    for count in reversed(tiles):
        parts = -(-count // min(room, count))
        g = -(-count // parts)
        group.insert(0, g)
        room = max(1, room // g)
    heads = 1
    while heads * 2 <= room and h % (heads * 2) == 0:
        heads *= 2
    return Tiling(shape, tile, window, tuple(group)), heads
