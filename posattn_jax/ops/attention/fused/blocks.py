"""Cutting a grid into blocks of 64 positions, for the kernels of layout "fused" on a GPU.

A block is `tile` positions of the grid: a run along the last axis, or several rows of a short one. Position m of a
block lies at the coordinates m_k in it; key j of a block that is `step` blocks away from that of query i is at

  offset_k = step_k tile_k + j_k - i_k

Every pair of blocks so many steps apart needs the same encodings: the band of the W = prod(2 tile_k - 1) offsets of
these. Encoding number code(j) - code(i) + centre of a band, with code(m) = sum_k m_k stride_k, belongs to i and j.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp

from posattn_jax.axes import Array, Sizes

# Positions of a block: the rows of the smallest matrix product of a warpgroup.
BLOCK = 64


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
    def steps(self) -> Sizes:
        """How many steps there are between blocks, in each dimension."""
        return tuple(2 * n - 1 for n in self.counts)

    @functools.cached_property
    def band(self) -> Sizes:
        """The offsets between the positions of two blocks, in each dimension."""
        return tuple(2 * t - 1 for t in self.tile)

    @property
    def chunks(self) -> int:
        """The pages of 64 encodings that hold a band."""
        return -(-math.prod(self.band) // BLOCK)

    @functools.cached_property
    def strides(self) -> Sizes:
        """What one position along each dimension adds to the code."""
        return tuple(math.prod(self.band[k + 1 :]) for k in range(len(self.band)))

    @property
    def centre(self) -> int:
        """The encoding of a band that position 0 of one block and position 0 of another meet."""
        return sum((t - 1) * stride for t, stride in zip(self.tile, self.strides, strict=True))

    def coordinates(self, position):
        """Where a position of a block, or several, lies in it: one a dimension."""
        where = []
        for t in reversed(self.tile):
            where.append(position & (t - 1))
            position = position >> (t.bit_length() - 1)
        return where[::-1]

    def code(self, position):
        """As in the module's docstring."""
        return sum(m * stride for m, stride in zip(self.coordinates(position), self.strides, strict=True))

    def address(self, query, key):
        """The encoding of a band that a query and a key of two blocks meet."""
        return self.code(key) - self.code(query) + self.centre

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

    def bands(self, encoding: Array) -> Array:
        """[*R h d] -> [h * prod(steps) * chunks, 64, d]: the band of every step between blocks."""
        x = jnp.moveaxis(encoding, -2, 0)
        for axis, (n, t, size) in enumerate(zip(self.counts, self.tile, self.grid_shape, strict=True)):
            x = _bands_along(x, 1 + 2 * axis, n, t, size)  # [h, (steps, band), ..., R, ..., d]
        p = len(self.tile)
        x = x.transpose(0, *range(1, 1 + 2 * p, 2), *range(2, 2 + 2 * p, 2), 1 + 2 * p)
        h, d = x.shape[0], x.shape[-1]
        x = x.reshape(h, math.prod(self.steps), -1, d)
        x = jnp.pad(x, [(0, 0), (0, 0), (0, self.chunks * BLOCK - x.shape[2]), (0, 0)])
        return x.reshape(-1, BLOCK, d)


def _bands_along(x: Array, axis: int, n: int, t: int, size: int) -> Array:
    """2 size - 1 offsets along an axis -> [..., 2 n - 1 steps, 2 t - 1 offsets, ...]."""
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    padding = [(0, 0)] * x.ndim
    padding[axis] = (n * t - size, n * t - size + 1)
    x = jnp.pad(x, padding).reshape(*before, 2 * n, t, *after)
    first, second = (x[(slice(None),) * axis + (slice(k, 2 * n - 1 + k),)] for k in (0, 1))
    return jnp.concatenate([first, second], axis + 1)[(slice(None),) * (axis + 1) + (slice(2 * t - 1),)]


def tiles(grid_shape: Sizes) -> list[Sizes]:
    """The tiles to choose from, the one that wastes least first: rows alone have the smallest bands."""
    rows = (*(1 for _ in grid_shape[1:]), BLOCK)
    width = min(BLOCK, 1 << (grid_shape[-1] - 1).bit_length())
    if len(grid_shape) == 1 or width == BLOCK:
        return [rows]
    width = max(width, 4)  # bands of tiles narrower than that hold no more, but of fewer offsets of the grid
    return [(*(1 for _ in grid_shape[2:]), BLOCK // width, width), rows]
