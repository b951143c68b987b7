"""Cuts a grid into rows of queries along its first dimension, and finds the offsets that each row meets.

A query meets the offsets between it and its keys, which are all N positions; a row meets those of its queries. In the
ordered list of the offsets that a row meets, each query meets N consecutive ones. Those of the next query start one
line, prod(S[1:]) offsets, earlier.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from posattn_jax.axes import Array, Sizes
from posattn_jax.ops import grid
from posattn_jax.ops.attention.problem import Problem
from posattn_jax.ops.attention.xla.loop import examples, heads_at_once, score_bytes
from posattn_jax.ops.kernels import relative_shift
from posattn_jax.ops.precision import minus

# Queries per row. More queries make larger products, but also more offsets that only some of them meet.
ROW_QUERIES = 16


@dataclasses.dataclass(frozen=True)
class Rows:
    """A grid S cut into rows of queries.

    It is no `Tiling`: a row meets all keys in their order, so they are read where they are, and one shift turns scores
    by offset into scores by key; any number of rows is computed at once, also where it divides no side of the grid.

    Attributes:
      grid_shape: S, the grid of the keys.
      query_shape: the grid of the queries, which may be some rows of S.
      run: the number of queries per row, all along the first dimension.
      at_once: the number of rows that are computed at once.
    """

    grid_shape: Sizes
    query_shape: Sizes
    run: int
    at_once: int

    @property
    def num_positions(self) -> int:
        """N."""
        return math.prod(self.grid_shape)

    @property
    def line(self) -> int:
        """The distance, in the order of positions, of two neighbours along the first dimension."""
        return math.prod(self.grid_shape[1:])

    @property
    def runs(self) -> int:
        """The number of rows that cover the queries' first dimension."""
        return -(-self.query_shape[0] // self.run)

    @property
    def steps(self) -> int:
        """The number of groups of `at_once` rows that cover the grid."""
        return -(-self.runs * self.line // self.at_once)

    @property
    def starts(self) -> np.ndarray:
        """The position of the first query of each row, among the queries: [steps, i, p].

        The last step is filled up with rows that were there before.
        """
        first = grid.positions((self.runs, *self.grid_shape[1:])) * [self.run, *(1 for _ in self.grid_shape[1:])]
        rows = np.arange(self.steps * self.at_once) % len(first)
        return first[rows].reshape(self.steps, self.at_once, -1)

    def queries(self, x: Array) -> Array:
        """[b h *S d] -> [steps, h, b, i, t, d], padded with 0."""
        b, h, *_, d = x.shape
        rows = self.runs * self.line
        x = x.reshape(b, h, self.query_shape[0], self.line, d)
        x = jnp.pad(x, [(0, 0), (0, 0), (0, self.runs * self.run - self.query_shape[0]), (0, 0), (0, 0)])
        x = (
            x.reshape(b, h, self.runs, self.run, self.line, d)
            .transpose(2, 4, 1, 0, 3, 5)
            .reshape(rows, h, b, self.run, d)
        )
        x = jnp.pad(x, [(0, self.steps * self.at_once - rows)] + [(0, 0)] * 4)
        return x.reshape(self.steps, self.at_once, h, b, self.run, d).transpose(0, 2, 3, 1, 4, 5)

    def grid(self, x: Array) -> Array:
        """The inverse of `queries`: [steps, h, b, i, t, d] -> [b h *S d]."""
        _, h, b, _, _, d = x.shape
        x = x.transpose(0, 3, 1, 2, 4, 5).reshape(self.steps * self.at_once, h, b, self.run, d)[: self.runs * self.line]
        x = x.reshape(self.runs, self.line, h, b, self.run, d).transpose(3, 2, 0, 4, 1, 5)
        x = x.reshape(b, h, self.runs * self.run, self.line, d)[:, :, : self.query_shape[0]]
        return x.reshape(b, h, *self.query_shape, d)

    def pad(self, table: Array) -> Array:
        """Pads [... *R] to all offsets that the padded queries of a row would meet; 0 at offsets that R lacks."""
        p = len(self.grid_shape)
        beyond = [(2 * s - 1 - r) // 2 for s, r in zip(self.grid_shape, table.shape[-p:], strict=True)]
        ends = [(beyond[0] + self.runs * self.run - self.query_shape[0], beyond[0]), *((n, n) for n in beyond[1:])]
        return jnp.pad(table, [(0, 0)] * (table.ndim - p) + ends)

    def first_offsets(self, starts: Array) -> Array:
        """The index in a padded table where the band of each row starts."""
        last = self.grid_shape[0] - self.query_shape[0] + (self.runs - 1) * self.run
        return minus(np.array([last, *(size - 1 for size in self.grid_shape[1:])]), starts)

    def bands(self, table: Array, starts: Array) -> Array:
        """The band of entries that each row meets, with its lines joined into one axis: [... *R] -> [... i r]."""
        p = len(self.grid_shape)
        lead = table.shape[:-p]
        sizes = (*lead, self.grid_shape[0] + self.run - 1, *self.grid_shape[1:])

        def take(start):
            return lax.dynamic_slice(table, (*(0 for _ in lead), *start), sizes)

        taken = jax.vmap(take, out_axes=len(lead))(self.first_offsets(starts))
        return taken.reshape(*lead, len(starts), -1)

    def add_bands(self, table: Array, bands: Array, starts: Array) -> Array:
        """The transpose of `bands`: adds every row's band to where it was taken from."""
        p = len(self.grid_shape)
        lead = table.shape[:-p]
        dimensions = lax.ScatterDimensionNumbers(
            update_window_dims=(*range(len(lead)), *range(len(lead) + 1, len(lead) + 1 + p)),
            inserted_window_dims=(),
            scatter_dims_to_operand_dims=tuple(range(len(lead), len(lead) + p)),
        )
        bands = bands.reshape(*lead, len(starts), -1, *self.grid_shape[1:])
        first = self.first_offsets(starts)
        return lax.scatter_add(table, first, bands, dimensions, mode="promise_in_bounds")

    def shift(self, x: Array) -> Array:
        """From offsets to keys, for values that differ between the queries of a row: [... t r] -> [... t s]."""
        return relative_shift(x, self.line)

    def unshift(self, x: Array) -> Array:
        """The transpose of `shift`, [... t s] -> [... t r]: 0 at the offsets that a query does not meet."""
        t = x.shape[-2]
        rows = [
            jnp.pad(x[..., i, :], [(0, 0)] * (x.ndim - 2) + [((t - 1 - i) * self.line, i * self.line)])
            for i in range(t)
        ]
        return jnp.stack(rows, -2)

    def toeplitz(self, x: Array) -> Array:
        """`shift` for values that all queries share: [... r] -> [... t s]."""
        keys = x.shape[-1] - (self.run - 1) * self.line
        firsts = [(self.run - 1 - t) * self.line for t in range(self.run)]
        return jnp.stack([lax.slice_in_dim(x, first, first + keys, axis=-1) for first in firsts], -2)


def choose_rows(problem: Problem) -> tuple[Rows, int]:
    """The rows, and the number of heads to compute at once: few enough for a cache, or all for weights and dropout."""
    shape, num_queries = problem.grid_shape, problem.query_shape[0]
    b, _, h, _ = problem.query.shape
    run = -(-num_queries // -(-num_queries // ROW_QUERIES))  # rows of equal length
    room = score_bytes() // (examples(b) * run * math.prod(shape) * problem.dtype.itemsize)
    heads = h if problem.return_weights or problem.dropout_rate > 0 else heads_at_once(h, room)
    rows = -(-num_queries // run) * math.prod(shape[1:])
    steps = -(-rows // max(1, room // heads))
    return Rows(shape, problem.query_shape, run, -(-rows // steps)), heads
