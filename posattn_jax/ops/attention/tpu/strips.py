"""Arranges a grid in strips of positions, which the fused TPU kernels read in tiles."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from posattn_jax.axes import Array

# The dimensions of the frame that every grid is put into: planes, rows, columns.
FRAME = 3


@dataclasses.dataclass(frozen=True)
class Lanes:
    """The order of heads and features in the last axis of an array: heads side by side, in groups that fill registers.

    Attributes:
      heads: the number of heads.
      each: the lanes of a head: its features, then zeros. A power of two if a group has several heads.
      group: the number of heads of a group.
      width: the lanes of a group: those of its heads, then zeros.
    """

    heads: int
    each: int
    group: int
    width: int

    @property
    def groups(self) -> int:
        """The number of groups. The last may have fewer heads, and zeros in their place."""
        return -(-self.heads // self.group)

    @property
    def padded(self) -> int:
        """The number of heads with those that only fill the last group."""
        return self.groups * self.group

    def join(self, x: Array) -> Array:
        """[... h c] -> [... L], where L is `groups` times `width`."""
        x = _pad(_pad(x, -1, 0, self.each - x.shape[-1]), -2, 0, self.padded - self.heads)
        x = x.reshape(*x.shape[:-2], self.groups, self.group * self.each)
        x = _pad(x, -1, 0, self.width - x.shape[-1])
        return x.reshape(*x.shape[:-2], self.groups * self.width)

    def part(self, x: Array, features: int) -> Array:
        """The inverse of `join`: [... L] -> [... h c]."""
        x = x.reshape(*x.shape[:-1], self.groups, self.width)[..., : self.group * self.each]
        return x.reshape(*x.shape[:-2], self.padded, self.each)[..., : self.heads, :features]


@dataclasses.dataclass(frozen=True)
class Strips:
    """The order of a grid's positions in strips, and of the encodings at every offset along a strip.

    It is no `Tiling` of XLA's implementations: a tile here is a run of positions in memory, as registers are filled,
    and a window of keys is a walk over such tiles, not a copy.

    A grid has planes of rows and columns; a grid of one dimension is one column. Each plane is cut into strips of
    `width` columns. Column x of row y of a strip is its position y width + x. Strips are cut into `chunks` of equal
    size, and chunks into tiles.

    A query at position m of its strip and a key at position n of its strip have the offset f = n - m along a strip, and
    are x = n mod width - m mod width columns apart. f alone does not say how many rows and columns they are apart: if
    x < 0, f has borrowed a row. So there are two `bands` of encodings by f, one for pairs with x >= 0 and one for pairs
    with x < 0. Strips of one column need only the first.

    Attributes:
      grid_shape: the grid.
      width: the number of columns of a strip, a power of two; 1 if the grid has one column.
      unit: the size of a chunk is a multiple of this.
      limit: the most positions per chunk, a multiple of `unit`.
      half: the largest possible half-span.
      sublanes: the positions that lie side by side in a register. `width` is a multiple of this, or 1.
    """

    grid_shape: tuple[int, ...]
    width: int
    unit: int
    limit: int
    half: tuple[int, ...]
    sublanes: int = 8

    @property
    def axes(self) -> tuple[int, ...]:
        """The dimension of the frame for each dimension of the grid."""
        return {1: (1,), 2: (1, 2), 3: (0, 1, 2)}[len(self.grid_shape)]

    @functools.cached_property
    def frame(self) -> tuple[int, ...]:
        """The shape of the grid within the frame: 1 in every other dimension."""
        sizes = dict(zip(self.axes, self.grid_shape, strict=True))
        return tuple(sizes.get(axis, 1) for axis in range(FRAME))

    @property
    def strips(self) -> int:
        """The number of strips per plane."""
        return -(-self.frame[2] // self.width)

    @property
    def positions(self) -> int:
        """The number of positions per strip before it is padded."""
        return self.frame[1] * self.width

    @property
    def chunks(self) -> int:
        """The number of chunks per strip."""
        return -(-self.positions // self.limit)

    @property
    def chunk(self) -> int:
        """The number of positions per chunk."""
        return -(-self.positions // (self.chunks * self.unit)) * self.unit

    @property
    def length(self) -> int:
        """The number of positions per strip, with padding."""
        return self.chunks * self.chunk

    @property
    def counts(self) -> tuple[int, int, int]:
        """The numbers of planes, strips per plane and chunks per strip."""
        return self.frame[0], self.strips, self.chunks

    @property
    def bands(self) -> int:
        """The number of bands of encodings for each step between strips."""
        return 1 if self.width == 1 else 2

    @property
    def row(self) -> int:
        """The number of positions of a row of the arrays: those of a strip's row, or of one register."""
        return max(self.width, self.sublanes)

    @property
    def rows(self) -> tuple[int, int, int]:
        """The rows of a chunk in an array: their number, and how they lie in registers."""
        return self.chunk // self.row, self.row // self.sublanes, self.sublanes

    def lay(self, x: Array, fill: float = 0.0) -> Array:
        """[b *S L] -> [b z rows strips _ _ L], with `fill` where there is no position of the grid.

        Positions keep their order in memory if the grid fills all strips and chunks.
        """
        z, y, columns = self.frame
        x = x.reshape(len(x), z, y, columns, x.shape[-1])
        x = _pad(x, -2, 0, self.strips * self.width - columns, fill)
        x = _pad(x, -3, 0, self.length // self.width - y, fill)
        _, *in_row = self.rows
        return x.reshape(len(x), z, self.length // self.row, self.strips, *in_row, x.shape[-1])

    def unlay(self, x: Array) -> Array:
        """The inverse of `lay`."""
        z, y, columns = self.frame
        x = x.reshape(len(x), z, self.length // self.width, self.strips * self.width, x.shape[-1])
        return x[:, :, :y, :columns].reshape(len(x), *self.grid_shape, x.shape[-1])

    def in_order(self, x: Array) -> Array:
        """An array that `lay` has laid out, by chunk: [b z rows strips _ _ L] -> [b z strips chunks chunk L]."""
        x = jnp.moveaxis(x, 3, 2)
        return x.reshape(*x.shape[:3], self.chunks, self.chunk, x.shape[-1])

    def encodings(self, encoding: Array) -> Array:
        """[*R L] -> [steps between planes, strips and chunks, bands, 2 chunk, L]: the encodings of each step.

        Steps go from -reach to reach. The encodings between the queries of a chunk and the keys of the chunk w chunks
        later begin with f = (w - 1) chunk. There are 2 chunk of them, so each encoding is stored twice.
        """
        planes, strips, chunks = self.reach
        columns = (strips + 1) * self.width
        rows = (chunks + 1) * self.chunk // self.width
        x = encoding.reshape(*(2 * size - 1 for size in self.frame), encoding.shape[-1])
        x = _around_centre(x, [(planes, planes), (rows, rows), (columns, columns - 1)])
        x = x.reshape(*x.shape[:2], 2 * strips + 2, self.width, x.shape[-1]).swapaxes(1, 2)
        bands = [x[:, 1:, :-1], x[:, :-1, 1:]][: self.bands]  # the second, x < 0: a row later
        bands = [band.reshape(*band.shape[:2], 2 * chunks + 2, self.chunk, x.shape[-1]) for band in bands]
        x = jnp.stack(bands, 3)
        return jnp.concatenate([x[:, :, :-1], x[:, :, 1:]], -2)

    def in_frame(self, half: Array | np.ndarray) -> Array | np.ndarray:
        """Half-spans [h p] -> [h 3]."""
        return half @ np.eye(FRAME, dtype=np.int32)[list(self.axes)]

    def steps(self, half: Any) -> list[Any]:
        """The numbers of planes, strips and chunks that a half-span [3] reaches."""
        along = half[1] * self.width + self.width - 1
        return [half[0], -(-half[2] // self.width), -(-along // self.chunk)]

    @functools.cached_property
    def reach(self) -> tuple[int, ...]:
        """`steps` of the largest half-span, but at most as many as the grid has."""
        steps = self.steps(self.in_frame(np.array(self.half)))
        return tuple(min(int(step), count - 1) for step, count in zip(steps, self.counts, strict=True))

    def step(self, offset: Sequence[Any]) -> tuple[Any, ...]:
        """The index, among the encodings of all steps, of those of an offset in planes, strips and chunks."""
        return tuple(o + most for o, most in zip(offset, self.reach, strict=True))


def _pad(x: Array, axis: int, before: int, after: int, fill: float = 0.0) -> Array:
    if not before and not after:
        return x
    padding = [(0, 0)] * x.ndim
    padding[axis] = (before, after)
    return jnp.pad(x, padding, constant_values=fill)


def _around_centre(x: Array, sides: Sequence[tuple[int, int]]) -> Array:
    """Cuts the inner axes, or pads them with 0, to `sides` entries before and after their middle."""
    middles = [size // 2 for size in x.shape[:-1]]
    padding = [(before - m, after - m, 0) for (before, after), m in zip(sides, middles, strict=True)]
    return lax.pad(x, jnp.zeros((), x.dtype), [*padding, (0, 0, 0)])
