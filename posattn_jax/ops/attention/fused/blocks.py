"""Cuts a grid into blocks of 64 positions, for the kernels of layout "fused" on a GPU.

A block is `tile` positions of the grid: a run along the last axis, or pieces of several rows. Position m of a block has
the coordinates m_k in it. If the block of key j is `step` blocks away from the block of query i, their offset is

  offset_k = step_k tile_k + j_k - i_k

All pairs of blocks that are the same number of steps apart need the same encodings: a band. It has 2 tile_k - 1 offsets
along each dimension, and one more along the last. The offset between i and j has the coordinates
j_k - i_k + tile_k - 1 in the band.

A query meets only tile_k offsets of a band along each dimension. Its products with the encodings are kept in a row that
has places for these offsets, and along the last dimension for all offsets of the band.
"""

import dataclasses
import functools
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp

from posattn_jax.axes import Array, Sizes

# Positions per block: the rows of the smallest matrix product of a warpgroup.
BLOCK = 64
# The least positions of a tile along the last dimension: 8 encodings in a row then differ only in the last coordinate.
LEAST_ROW = 4
# The approximate number of instructions of the forward kernel, per pair of blocks and per page of a band.
PAIR_COST, CHUNK_COST = 500, 55


@dataclasses.dataclass(frozen=True)
class Blocks:
    """A grid cut into blocks.

    Attributes:
      grid_shape: S.
      tile: the number of positions of a block in each dimension, powers of two with the product 64.
    """

    grid_shape: Sizes
    tile: Sizes

    @functools.cached_property
    def counts(self) -> Sizes:
        """The number of blocks in each dimension."""
        return tuple(-(-size // t) for size, t in zip(self.grid_shape, self.tile, strict=True))

    @property
    def count(self) -> int:
        return math.prod(self.counts)

    @functools.cached_property
    def band(self) -> Sizes:
        """The number of offsets of a band in each dimension; in the last an unused one makes it a power of two."""
        return (*(2 * t - 1 for t in self.tile[:-1]), 2 * self.tile[-1])

    @functools.cached_property
    def row(self) -> Sizes:
        """The number of places in a query's row, in each dimension."""
        return (*self.tile[:-1], self.band[-1])

    @property
    def chunks(self) -> int:
        """The number of pages of 64 encodings that hold a band."""
        return -(-math.prod(self.band) // BLOCK)

    def coordinates(self, position: Any) -> list[Any]:
        """The coordinates, one per dimension, of one or several positions in their block."""
        where = []
        for t in reversed(self.tile):
            where.append(position & (t - 1))
            position = position >> (t.bit_length() - 1)
        return where[::-1]

    def place(self, query: Any, key: Any) -> Any:
        """The place, in a query's row, of its product with the encoding of its offset to a key."""
        i, j = self.coordinates(query), self.coordinates(key)
        where = [*j[:-1], j[-1] - i[-1] + (self.tile[-1] - 1)]
        return sum(x * stride for x, stride in zip(where, _strides(self.row), strict=True))

    def place_of(self, query: Any, number: Any) -> tuple[Any, list[tuple[Any, int]]]:
        """The place, in a query's row, of its product with encoding `number` of a band; and pairs (s, t).

        A key has this offset only if 0 <= s < t for all pairs.
        """
        place = number & (self.band[-1] - 1)
        number = number >> (self.band[-1].bit_length() - 1)
        met = []
        dims = list(zip(self.coordinates(query), self.tile, self.band, _strides(self.row), strict=True))
        for k, (i, t, size, stride) in reversed(list(enumerate(dims[:-1]))):
            step = (number % size if k else number) + i - (t - 1)  # k = 0: the last page may go further
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
        """The most steps, in each dimension, between two blocks that meet within the half-spans."""
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
    """The row-major strides."""
    return tuple(math.prod(sizes[k + 1 :]) for k in range(len(sizes)))


def tiles(grid_shape: Sizes, half: Sizes) -> list[Sizes]:
    """The tiles to choose from, sorted by the time that is expected for these half-spans."""
    shapes = [
        tile
        for tile in itertools.product(*[[1 << bit for bit in range(BLOCK.bit_length())]] * len(grid_shape))
        if math.prod(tile) == BLOCK and tile[-1] >= LEAST_ROW
    ]
    return sorted(shapes, key=lambda tile: cost(Blocks(grid_shape, tile), half))


def cost(blocks: Blocks, half: Sizes) -> int:
    """The expected time, in instructions of the forward kernel."""
    return pairs(blocks, half) * (PAIR_COST + CHUNK_COST * blocks.chunks)


def pairs(blocks: Blocks, half: Sizes) -> int:
    """The number of pairs of blocks that meet within the half-spans."""
    return math.prod(
        sum(min(y * t + t - 1 + reach, size - 1) // t - max(y * t - reach, 0) // t + 1 for y in range(n))
        for n, t, reach, size in zip(blocks.counts, blocks.tile, half, blocks.grid_shape, strict=True)
    )
