"""Cutting a grid into blocks of 64 positions, for the kernels of layout "fused" on a GPU.

A block is `tile` positions of the grid: a run along the last axis, or several pieces of rows. Position m of a block
lies at the coordinates m_k in it; key j of a block that is `step` blocks away from that of query i is at

  offset_k = step_k tile_k + j_k - i_k

Every pair of blocks so many steps apart needs the same encodings: the band of the offsets of these, 2 tile_k - 1 along
a dimension, and one more along the last; j_k - i_k + tile_k - 1 is the coordinate in a band of what i and j meet.

Of a band a query meets tile_k offsets alone along each dimension. What it makes of the encodings is kept in a row that
has places for these, and along the last dimension for all.
"""

import dataclasses
import functools
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp

from posattn_jax.axes import Array, Sizes

# Positions of a block: the rows of the smallest matrix product of a warpgroup.
BLOCK = 64
# Positions of a tile along the last dimension, at least: 8 encodings in a row differ in their last coordinate alone.
LEAST_ROW = 4
# About the instructions of the forward kernel for a pair of blocks, and beside that for each page of a band.
PAIR_COST, CHUNK_COST = 500, 55


@dataclasses.dataclass(frozen=True)
class Blocks:
    """A grid cut into blocks.

    Attributes:
      grid_shape: S.
      tile: positions of a block in each dimension, powers of two with the product 64.
    """

    grid_shape: Sizes
    tile: Sizes

    @functools.cached_property
    def counts(self) -> Sizes:
        """Blocks in each dimension."""
        return tuple(-(-size // t) for size, t in zip(self.grid_shape, self.tile, strict=True))

    @property
    def count(self) -> int:
        return math.prod(self.counts)

    @functools.cached_property
    def band(self) -> Sizes:
        """The encodings of two blocks, in each dimension: of the last one in vain, which makes it a power of two."""
        return (*(2 * t - 1 for t in self.tile[:-1]), 2 * self.tile[-1])

    @functools.cached_property
    def row(self) -> Sizes:
        """The places in a query's row, in each dimension."""
        return (*self.tile[:-1], self.band[-1])

    @property
    def chunks(self) -> int:
        """The pages of 64 encodings that hold a band."""
        return -(-math.prod(self.band) // BLOCK)

    def coordinates(self, position: Any) -> list[Any]:
        """Where a position of a block, or several, lies in it: one a dimension."""
        where = []
        for t in reversed(self.tile):
            where.append(position & (t - 1))
            position = position >> (t.bit_length() - 1)
        return where[::-1]

    def place(self, query: Any, key: Any) -> Any:
        """Where in a query's row is what it makes of the encoding that it and a key meet."""
        i, j = self.coordinates(query), self.coordinates(key)
        where = [*j[:-1], j[-1] - i[-1] + (self.tile[-1] - 1)]
        return sum(x * stride for x, stride in zip(where, _strides(self.row), strict=True))

    def place_of(self, query: Any, number: Any) -> tuple[Any, list[tuple[Any, int]]]:
        """Where in a query's row is what it makes of encoding `number` of a band, if 0 <= s < t for all pairs (s, t).

        Otherwise no key is there.
        """
        place = number & (self.band[-1] - 1)
        number = number >> (self.band[-1].bit_length() - 1)
        met = []
        dims = list(zip(self.coordinates(query), self.tile, self.band, _strides(self.row), strict=True))
        for k, (i, t, size, stride) in reversed(list(enumerate(dims[:-1]))):
            step = (number % size if k else number) + i - (t - 1)  # of the first, the last page may have more
            number = number // size
            met.append((step, t))
            place = place + step * stride
        return place, met

    def pages(self, x: Array) -> Array:
        """[b h *S d] -> [b * h * blocks, 64, d], with 0 off the grid."""
        b, h, *_, d = x.shape
        p = len(self.tile)
        padding = [(0, n * t - size) for n, t, size in zip(self.counts, self.tile, self.grid_shape, strict=True)]
        x = jnp.pad(x, [(0, 0), (0, 0), *padding, (0, 0)])
        x = x.reshape(b, h, *(size for pair in zip(self.counts, self.tile, strict=True) for size in pair), d)
        x = x.transpose(0, 1, *range(2, 2 + 2 * p, 2), *range(3, 3 + 2 * p, 2), 2 + 2 * p)
        return x.reshape(-1, BLOCK, d)

    def grid(self, pages: Array, b: int, h: int) -> Array:
        """The inverse of `pages`, which is its transpose."""
        like = jax.ShapeDtypeStruct((b, h, *self.grid_shape, pages.shape[-1]), pages.dtype)
        return jax.linear_transpose(self.pages, like)(pages)[0]

    def reach(self, half: Sizes) -> Sizes:
        """The most steps between two blocks that meet within half-spans, in each dimension."""
        return tuple(min(n - 1, (h + t - 1) // t) for n, h, t in zip(self.counts, half, self.tile, strict=True))

    def bands(self, encoding: Array, reach: Sizes) -> Array:
        """[*R h d] -> [h * prod(2 reach + 1) * chunks, 64, d]: the band of every step within `reach`."""
        x = jnp.moveaxis(encoding, -2, 0)
        for axis in range(len(self.tile)):
            x = self._bands_along(x, axis, reach[axis])  # [h, (steps, band), ..., R, ..., d]
        p = len(self.tile)
        x = x.transpose(0, *range(1, 1 + 2 * p, 2), *range(2, 2 + 2 * p, 2), 1 + 2 * p)
        h, d = x.shape[0], x.shape[-1]
        x = x.reshape(h, math.prod(2 * r + 1 for r in reach), -1, d)
        x = jnp.pad(x, [(0, 0), (0, 0), (0, self.chunks * BLOCK - x.shape[2]), (0, 0)])
        return x.reshape(-1, BLOCK, d)

    def _bands_along(self, x: Array, dim: int, reach: int) -> Array:
        """2 size - 1 offsets along a dimension -> [..., 2 reach + 1 steps, offsets of a band, ...]."""
        axis = 1 + 2 * dim
        n, t, size = self.counts[dim], self.tile[dim], self.grid_shape[dim]
        before, after = x.shape[:axis], x.shape[axis + 1 :]
        padding = [(0, 0)] * x.ndim
        padding[axis] = (n * t - size, n * t - size + 1)
        x = jnp.pad(x, padding).reshape(*before, 2 * n, t, *after)
        first = n - 1 - reach
        halves = (x[(slice(None),) * axis + (slice(k, k + 2 * reach + 1),)] for k in (first, first + 1))
        return jnp.concatenate(list(halves), axis + 1)[(slice(None),) * (axis + 1) + (slice(self.band[dim]),)]


def _strides(sizes: Sizes) -> Sizes:
    """Row-major."""
    return tuple(math.prod(sizes[k + 1 :]) for k in range(len(sizes)))


def tiles(grid_shape: Sizes, half: Sizes) -> list[Sizes]:
    """The tiles to choose from, the one that is expected to take least time for these half-spans first."""
    shapes = [
        tile
        for tile in itertools.product(*[[1 << bit for bit in range(BLOCK.bit_length())]] * len(grid_shape))
        if math.prod(tile) == BLOCK and tile[-1] >= LEAST_ROW
    ]
    return sorted(shapes, key=lambda tile: cost(Blocks(grid_shape, tile), half))


def cost(blocks: Blocks, half: Sizes) -> int:
    """Expected time, in instructions of the forward kernel."""
    return pairs(blocks, half) * (PAIR_COST + CHUNK_COST * blocks.chunks)


def pairs(blocks: Blocks, half: Sizes) -> int:
    """Pairs of blocks that meet within half-spans."""
    return math.prod(
        sum(min(y * t + t - 1 + reach, size - 1) // t - max(y * t - reach, 0) // t + 1 for y in range(n))
        for n, t, reach, size in zip(blocks.counts, blocks.tile, half, blocks.grid_shape, strict=True)
    )
