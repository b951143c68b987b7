"""A grid as lines of positions, each of them so long that tiles of 128 fill it: what a fused kernel reads."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from posattn_jax.axes import Array

# The dimensions of the frame that every grid is put into: two leading ones, the rows of a line, and along a row.
FRAME = 4


@dataclasses.dataclass(frozen=True)
class Lines:
    """Where the positions of a grid stand in lines, and what stands at every offset along one.

    A line is a row of the grid. Where rows are short, it is all rows of a plane, one after the other, each begun at a
    multiple of `pitch`, a power of two of at least two rows. The offset f = y pitch + x between two positions of such
    a line still says how many rows y and columns x they are apart, so that what is relative in a plane is so in its
    line. Leading dimensions number the lines. Lines are cut into `chunks` of equal size, and those into tiles.

    Attributes:
      grid_shape: the grid.
      tile: positions a tile, a power of two.
      limit: the most positions a chunk, a multiple of `tile`.
    """

    grid_shape: tuple[int, ...]
    tile: int
    limit: int

    @functools.cached_property
    def pitch(self) -> int:
        """From one row of a line to the next; a row alone has none, and its own size stands for it."""
        size = self.grid_shape[-1]
        pitch = 1 << (2 * size - 1).bit_length()
        return pitch if len(self.grid_shape) > 1 and pitch <= self.tile else size

    @property
    def in_planes(self) -> bool:
        """Whether a line holds all rows of a plane."""
        return self.pitch > self.grid_shape[-1]

    @property
    def axes(self) -> tuple[int, ...]:
        """The dimensions of the frame that those of the grid are."""
        last = (2, 3) if self.in_planes else (3,)
        first = len(self.grid_shape) - len(last)
        return (*range(2 - first, 2), *last)

    @property
    def frame(self) -> tuple[int, ...]:
        """The grid within the frame: 1 in every other dimension."""
        sizes = dict(zip(self.axes, self.grid_shape, strict=True))
        return tuple(sizes.get(axis, 1) for axis in range(FRAME))

    @property
    def held(self) -> int:
        """The positions of a line before it is padded."""
        return self.frame[2] * self.pitch

    @property
    def chunks(self) -> int:
        """A line."""
        return -(-self.held // self.limit)

    @property
    def chunk(self) -> int:
        """Positions a chunk."""
        return -(-self.held // (self.chunks * self.tile)) * self.tile

    @property
    def length(self) -> int:
        """Positions a line."""
        return self.chunks * self.chunk

    def lay(self, x: Array, fill: float = 0.0) -> Array:
        """[b h *S d] -> [b h z y length d], with `fill` where no position of the grid stands."""
        x = x.reshape(*x.shape[:2], *self.frame, x.shape[-1])
        x = _pad(x, -2, 0, self.pitch - self.frame[3], fill)
        x = x.reshape(*x.shape[:4], self.held, x.shape[-1])
        return _pad(x, -2, 0, self.length - self.held, fill)

    def unlay(self, x: Array) -> Array:
        """The inverse of `lay`."""
        x = x[..., : self.held, :].reshape(*x.shape[:4], self.frame[2], self.pitch, x.shape[-1])
        return x[..., : self.frame[3], :].reshape(*x.shape[:2], *self.grid_shape, x.shape[-1])

    def bands(self, encoding: Array) -> Array:
        """[*R h d] -> [h, 2 Z - 1, 2 Y - 1, 2 chunks - 1, 2 chunk, d]: the offsets between chunks of lines.

        Band w has what is between the queries of a chunk and the keys of the one w - (chunks - 1) later: the offsets
        along a line from (w - chunks) chunk on. Twice as many as a chunk, so that each stands in two bands.
        """
        z, y, rows, columns = self.frame
        x = jnp.moveaxis(encoding, -2, 0)
        x = x.reshape(len(x), 2 * z - 1, 2 * y - 1, 2 * rows - 1, 2 * columns - 1, x.shape[-1])
        before = self.pitch // 2 - (columns - 1) if self.in_planes else 0
        if self.in_planes:
            x = _pad(x, -2, before, self.pitch - (2 * columns - 1) - before)
        x = x.reshape(*x.shape[:3], -1, x.shape[-1])
        before = self.length - ((rows - 1) * self.pitch + columns - 1 + before)
        x = _pad(x, -2, before, 2 * self.length - before - x.shape[-2])
        x = x.reshape(*x.shape[:3], 2 * self.chunks, self.chunk, x.shape[-1])
        return jnp.concatenate([x[..., :-1, :, :], x[..., 1:, :, :]], -2)

    def in_frame(self, half: Array | np.ndarray) -> Array | np.ndarray:
        """Half-spans [h p] -> [h 4]."""
        return half @ np.eye(FRAME, dtype=np.int32)[list(self.axes)]

    def reach(self, half: Sequence[Any]) -> Any:
        """How far along a line a half-span [4] reaches."""
        return half[2] * self.pitch + half[3]

    def apart(self, offset: Array) -> tuple[Array | int, Array]:
        """The rows and columns that two positions of a line are apart, by their offset along it."""
        if not self.in_planes:
            return 0, offset
        bits = self.pitch.bit_length() - 1
        rows = jnp.right_shift(offset + self.pitch // 2, bits)
        return rows, offset - jnp.left_shift(rows, bits)


def _pad(x: Array, axis: int, before: int, after: int, fill: float = 0.0) -> Array:
    if not before and not after:
        return x
    padding = [(0, 0)] * x.ndim
    padding[axis] = (before, after)
    return jnp.pad(x, padding, constant_values=fill)
