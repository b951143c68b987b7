"""A grid as strips of positions, which the fused kernels for TPUs read in tiles."""

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
class Strips:
    """Where the positions of a grid stand in strips, and what stands at every offset along one.

    A grid has planes of rows and columns; a grid of one dimension is one column. Each plane is cut into strips of
    `width` columns, and column x of row y of a strip stands at position y width + x. Strips are cut into `chunks` of
    equal size, and those into tiles.

    Of a query m and a key n of two strips, x = n mod width - m mod width columns apart within them, the offset along a
    strip f = n - m does not yet say how far they are apart: where x < 0, f has borrowed a row. So there are two
    `bands` of encodings by f, of the pairs with x >= 0 and of those with x < 0. Strips of one column need the first
    alone.

    Attributes:
      grid_shape: the grid.
      width: columns of a strip, a power of two; 1 where there is one column.
      unit: chunks are multiples of this.
      limit: the most positions a chunk, a multiple of `unit`.
      half: the largest half-span that there may be.
    """

    grid_shape: tuple[int, ...]
    width: int
    unit: int
    limit: int
    half: tuple[int, ...]

    @property
    def axes(self) -> tuple[int, ...]:
        """The dimensions of the frame that those of the grid are."""
        return {1: (1,), 2: (1, 2), 3: (0, 1, 2)}[len(self.grid_shape)]

    @functools.cached_property
    def frame(self) -> tuple[int, ...]:
        """The grid within the frame: 1 in every other dimension."""
        sizes = dict(zip(self.axes, self.grid_shape, strict=True))
        return tuple(sizes.get(axis, 1) for axis in range(FRAME))

    @property
    def strips(self) -> int:
        """A plane."""
        return -(-self.frame[2] // self.width)

    @property
    def held(self) -> int:
        """The positions of a strip before it is padded."""
        return self.frame[1] * self.width

    @property
    def chunks(self) -> int:
        """A strip."""
        return -(-self.held // self.limit)

    @property
    def chunk(self) -> int:
        """Positions a chunk."""
        return -(-self.held // (self.chunks * self.unit)) * self.unit

    @property
    def length(self) -> int:
        """Positions a strip."""
        return self.chunks * self.chunk

    @property
    def counts(self) -> tuple[int, int, int]:
        """Planes, strips and chunks."""
        return self.frame[0], self.strips, self.chunks

    @property
    def bands(self) -> int:
        """Of encodings, for each step between strips."""
        return 1 if self.width == 1 else 2

    def lay(self, x: Array, fill: float = 0.0) -> Array:
        """[b h *S d] -> [b h z strips length d], with `fill` where no position of the grid stands."""
        z, y, columns = self.frame
        x = x.reshape(*x.shape[:2], z, y, columns, x.shape[-1])
        x = _pad(x, -2, 0, self.strips * self.width - columns, fill)
        x = x.reshape(*x.shape[:4], self.strips, self.width, x.shape[-1]).swapaxes(3, 4)
        return _pad(x.reshape(*x.shape[:4], self.held, x.shape[-1]), -2, 0, self.length - self.held, fill)

    def unlay(self, x: Array) -> Array:
        """The inverse of `lay`."""
        x = x[..., : self.held, :].reshape(*x.shape[:4], self.frame[1], self.width, x.shape[-1]).swapaxes(3, 4)
        x = x.reshape(*x.shape[:4], self.strips * self.width, x.shape[-1])
        return x[..., : self.frame[2], :].reshape(*x.shape[:2], *self.grid_shape, x.shape[-1])

    def encodings(self, encoding: Array) -> Array:
        """[*R h d] -> [h, steps between planes, strips and chunks, bands, 2 chunk, d]: what stands at their offsets.

        Of each the steps from -reach to reach. Those between the queries of a chunk and the keys of the one w chunks
        later begin with f = (w - 1) chunk. Twice as many as a chunk, so that each stands in two.
        """
        planes, strips, chunks = self.reach
        columns = (strips + 1) * self.width
        rows = (chunks + 1) * self.chunk // self.width
        x = jnp.moveaxis(encoding, -2, 0)
        x = x.reshape(len(x), *(2 * size - 1 for size in self.frame), x.shape[-1])
        x = _around_centre(x, [(planes, planes), (rows, rows), (columns, columns - 1)])
        x = x.reshape(*x.shape[:3], 2 * strips + 2, self.width, x.shape[-1]).swapaxes(2, 3)
        bands = [x[:, :, 1:, :-1], x[:, :, :-1, 1:]][: self.bands]  # of x < 0, a row later
        bands = [band.reshape(*band.shape[:3], 2 * chunks + 2, self.chunk, x.shape[-1]) for band in bands]
        x = jnp.stack(bands, 4)
        return jnp.concatenate([x[:, :, :, :-1], x[:, :, :, 1:]], -2)

    def in_frame(self, half: Array | np.ndarray) -> Array | np.ndarray:
        """Half-spans [h p] -> [h 3]."""
        return half @ np.eye(FRAME, dtype=np.int32)[list(self.axes)]

    def steps(self, half: Any) -> list[Any]:
        """How many planes, strips and chunks a half-span [3] reaches."""
        along = half[1] * self.width + self.width - 1
        return [half[0], -(-half[2] // self.width), -(-along // self.chunk)]

    @functools.cached_property
    def reach(self) -> tuple[int, ...]:
        """`steps` of the largest half-span, as far as there are so many."""
        steps = self.steps(self.in_frame(np.array(self.half)))
        return tuple(min(int(step), count - 1) for step, count in zip(steps, self.counts, strict=True))


def _pad(x: Array, axis: int, before: int, after: int, fill: float = 0.0) -> Array:
    if not before and not after:
        return x
    padding = [(0, 0)] * x.ndim
    padding[axis] = (before, after)
    return jnp.pad(x, padding, constant_values=fill)


def _around_centre(x: Array, sides: Sequence[tuple[int, int]]) -> Array:
    """So many entries before and after the middle of the axes from the second on, cut off or filled up with 0."""
    middles = [size // 2 for size in x.shape[1:-1]]
    padding = [(before - m, after - m, 0) for (before, after), m in zip(sides, middles, strict=True)]
    return lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *padding, (0, 0, 0)])
