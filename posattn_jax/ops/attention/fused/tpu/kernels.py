"""The bodies of the fused kernels for TPUs: what is computed between a chunk of queries and a chunk of keys.

Of every array a kernel sees the chunk that its place in the launch names. It walks over tiles of that chunk, and for
each over the tiles on the other side that the span of its head reaches: bounds that are known at run time.
"""

import dataclasses
import functools
import operator
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from posattn_jax.axes import Array
from posattn_jax.ops import scores
from posattn_jax.ops.attention.fused.lines import FRAME, Lines

# Of the bounds, an array of integers, those that all heads share come first: the reach over lines and over chunks.
SHARED = 3

# Which axes two tiles [rows, columns] are multiplied along.
ROWS_WITH_ROWS = ((0,), (0,))
COLUMNS_WITH_ROWS = ((1,), (0,))
COLUMNS_WITH_COLUMNS = ((1,), (1,))


@dataclasses.dataclass(frozen=True)
class Place:
    """Where in the launch a kernel runs: its head, its queries' line and chunk, and how much later the keys' are."""

    head: Any
    query: tuple[Any, Any, Any]
    offset: tuple[Any, Any, Any]

    @property
    def key(self) -> tuple[Any, Any, Any]:
        """The keys' line and chunk, which may lie outside the grid."""
        return tuple(q + o for q, o in zip(self.query, self.offset, strict=True))


@dataclasses.dataclass(frozen=True)
class Kernels:
    """The kernels for one set of options.

    Attributes:
      lines: how the grid is laid out.
      dtype: of scores and accumulators.
      scaling, multiply, is_causal: as in `Problem`; multiply is the span's mode.
      pairs: ln G is a sum over these (i, j) of a coefficient times offset_i offset_j, in the frame; empty: no span.
    """

    lines: Lines
    dtype: jnp.dtype
    scaling: float
    multiply: bool
    is_causal: bool
    pairs: tuple[tuple[int, int], ...]

    def forward(self, place: Place, first: Array, last: Array, bounds, ins, outs):
        """Softmax and outputs, accumulated over the keys' chunks; statistics [chunk 2], as in `Loop`."""

        @pl.when(first)
        def _():
            outs["outputs"][...] = jnp.zeros_like(outs["outputs"])
            outs["statistics"][:, 0:1] = jnp.full((self.lines.chunk, 1), scores.LOWEST, self.dtype)
            outs["statistics"][:, 1:2] = jnp.zeros((self.lines.chunk, 1), self.dtype)

        def tile(t, keys):
            rows = self.rows(t, place.query)

            def step(s, carry):
                largest, total, outputs = carry
                logits, _, _, _ = self.logits(place, bounds, ins, t, s)
                new = jnp.maximum(largest, jnp.max(logits, 1, keepdims=True))
                weights = jnp.exp(logits - new)
                decay = jnp.exp(largest - new)
                total = total * decay + jnp.sum(weights, 1, keepdims=True)
                value = ins["value"][self.rows(s, place.key), :]
                return new, total, outputs * decay + self.mix(weights, value)

            statistics = outs["statistics"][rows, :]
            carry = statistics[:, 0:1], statistics[:, 1:2], outs["outputs"][rows, :]
            largest, total, outputs = lax.fori_loop(*keys, step, carry)
            outs["statistics"][rows, 0:1] = largest
            outs["statistics"][rows, 1:2] = total
            outs["outputs"][rows, :] = outputs

        self.each_tile(place, bounds, place.query, place.key, tile)

        @pl.when(last)
        def _():
            total = outs["statistics"][:, 1:2]
            inverse = 1 / jnp.where(total == 0, 1, total)
            outs["statistics"][:, 1:2] = inverse
            outs["outputs"][...] = outs["outputs"][...] * inverse

    def to_queries(self, place: Place, first: Array, last: Array, bounds, ins, outs):
        """The cotangents of queries, and of the coefficients of ln G: [pairs, tile], by the column of a tile."""
        _begin_with_zeros(first, outs)

        def tile(t, keys):
            rows = self.rows(t, place.query)

            def step(s, carry):
                carry = dict(carry)
                _, d_logits, d_terms, (logits, products) = self.backward(place, bounds, ins, t, s)
                if "content_query" in carry:
                    carry["content_query"] += self.mix(d_terms, ins["key"][self.rows(s, place.key), :])
                if "position_query" in carry:
                    by_offset = self.by_offset(d_terms)
                    carry["position_query"] += self.mix(by_offset, ins["encoding"][self.band(place, t, s), :])
                if products:
                    d_log = d_logits * logits if self.multiply else d_logits
                    for m, product in enumerate(products):
                        outs["coefficients"][m : m + 1, :] += jnp.sum(d_log * product, 0, keepdims=True)
                return carry

            carry = {name: outs[name][rows, :] for name in ("content_query", "position_query") if name in outs}
            for name, total in lax.fori_loop(*keys, step, carry).items():
                outs[name][rows, :] = total

        self.each_tile(place, bounds, place.query, place.key, tile)

    def to_keys(self, place: Place, first: Array, last: Array, bounds, ins, outs):
        """The cotangents of keys and values, accumulated over the queries' chunks."""
        _begin_with_zeros(first, outs)

        def tile(s, queries):
            rows = self.rows(s, place.key)

            def step(t, carry):
                carry = dict(carry)
                weights, _, d_terms, _ = self.backward(place, bounds, ins, t, s)
                of_queries = self.rows(t, place.query)
                carry["value"] += self.mix(weights, ins["cotangent"][of_queries, :], ROWS_WITH_ROWS)
                if "key" in carry:
                    carry["key"] += self.mix(d_terms, ins["content_query"][of_queries, :], ROWS_WITH_ROWS)
                return carry

            carry = {name: out[rows, :] for name, out in outs.items()}
            for name, total in lax.fori_loop(*queries, step, carry).items():
                outs[name][rows, :] = total

        self.each_tile(place, bounds, place.key, place.query, tile, from_keys=True)

    def to_encoding(self, place: Place, first: Array, last: Array, bounds, ins, outs):
        """The cotangent of a band of encodings, accumulated over the batch and the queries' lines and chunks."""
        _begin_with_zeros(first, outs)

        def tile(t, keys):
            query = ins["position_query"][self.rows(t, place.query), :]

            def step(s, _):
                d_terms = self.backward(place, bounds, ins, t, s)[2]
                outs["encoding"][self.band(place, t, s), :] += self.mix(self.by_offset(d_terms), query, ROWS_WITH_ROWS)

            lax.fori_loop(*keys, step, None)

        self.each_tile(place, bounds, place.query, place.key, tile)

    def each_tile(self, place, bounds, own, other, body, from_keys=False):
        """body(t, (first, end)) for each tile of chunk `own` and the tiles of chunk `other` within the span from it."""
        lines = self.lines
        tiles, tile = lines.chunk // lines.tile, lines.tile
        num_tiles = -(-lines.held // tile)  # those after them hold no position
        half = self.half(place, bounds)
        inside = [jnp.abs(o) <= h for o, h in zip(place.offset[:2], half[:2], strict=True)]
        for where in (own, other):
            sizes = (*lines.frame[:2], lines.chunks)
            inside += [(index >= 0) & (index < size) for index, size in zip(where, sizes, strict=True)]
        reach = jnp.right_shift(lines.reach(half) + tile - 1, tile.bit_length() - 1)
        same_line = (place.offset[0] == 0) & (place.offset[1] == 0)
        if self.is_causal:
            inside.append((place.offset[0] < 0) | ((place.offset[0] == 0) & (place.offset[1] <= 0)))

        @pl.when(functools.reduce(operator.and_, inside))
        def _():
            def each(i, _):
                t = own[2] * tiles + i
                first = jnp.maximum(t - reach, other[2] * tiles)
                end = jnp.minimum(jnp.minimum(t + reach + 1, other[2] * tiles + tiles), num_tiles)
                if self.is_causal and from_keys:
                    first = jnp.where(same_line, jnp.maximum(first, t), first)
                elif self.is_causal:
                    end = jnp.where(same_line, jnp.minimum(end, t + 1), end)
                body(t, (first, end))

            lax.fori_loop(0, jnp.minimum(tiles, num_tiles - own[2] * tiles), each, None)

    def half(self, place, bounds):
        """The half-span of the head, in the frame."""
        return [bounds[SHARED + FRAME * place.head + axis] for axis in range(FRAME)]

    def rows(self, tile, where):
        """Where in its chunk a tile is."""
        lines = self.lines
        return pl.ds(pl.multiple_of(tile * lines.tile - where[2] * lines.chunk, lines.tile), lines.tile)

    def band(self, place, t, s):
        """Where in their band the offsets from tile t of queries to tile s of keys are: from (s - t - 1) tiles on."""
        lines = self.lines
        start = (s - t - 1) * lines.tile - (place.offset[2] - 1) * lines.chunk
        return pl.ds(pl.multiple_of(start, lines.tile), 2 * lines.tile)

    def logits(self, place, bounds, ins, t, s):
        """Logits of tile t of queries and tile s of keys; and before the masks, their factor, offsets' products."""
        tile = self.lines.tile
        terms = jnp.zeros((tile, tile), self.dtype)
        if "key" in ins:
            query, key = ins["content_query"][self.rows(t, place.query), :], ins["key"][self.rows(s, place.key), :]
            terms += self.dot(query, key, COLUMNS_WITH_COLUMNS)
        if "encoding" in ins:
            query = ins["position_query"][self.rows(t, place.query), :]
            band = ins["encoding"][self.band(place, t, s), :]
            terms += self.by_key(self.dot(query, band, COLUMNS_WITH_COLUMNS))
        along = lax.broadcasted_iota(jnp.int32, (tile, tile), 1) - lax.broadcasted_iota(jnp.int32, (tile, tile), 0)
        along += (s - t) * tile
        rows, columns = self.lines.apart(along)
        factor, logits, products = self.scaling, self.scaling * terms, []
        masks = []
        if self.pairs:
            offsets = [jnp.asarray(o).astype(self.dtype) for o in (*place.offset[:2], rows, columns)]
            products = [offsets[i] * offsets[j] for i, j in self.pairs]
            log_gaussian = sum(ins["coefficients"][place.head, m] * product for m, product in enumerate(products))
            log_gaussian = jnp.minimum(log_gaussian, 0)  # what is rounded off may be more, where sigma is a factor
            if self.multiply:
                factor = self.scaling * jnp.exp(log_gaussian)
                logits = factor * terms
            else:
                logits += log_gaussian
            half = self.half(place, bounds)
            masks = [jnp.abs(rows) <= half[2], jnp.abs(columns) <= half[3]]
        if self.is_causal:
            before = (place.offset[0] < 0) | (place.offset[1] < 0)
            masks.append((along <= 0) | before)
        masked = logits + ins["key_addend"][0:1, self.rows(s, place.key)]
        if masks:
            masked = jnp.where(functools.reduce(operator.and_, masks), masked, scores.MASKED)
        return masked, logits, factor, products

    def backward(self, place, bounds, ins, t, s):
        """Weights, and the cotangents of logits and terms, as in layout "tiled"; and what else `logits` returns."""
        logits, unmasked, factor, products = self.logits(place, bounds, ins, t, s)
        rows = self.rows(t, place.query)
        statistics = ins["statistics"][rows, :]
        weights = jnp.exp(logits - statistics[:, 0:1]) * statistics[:, 1:2]
        value = ins["value"][self.rows(s, place.key), :]
        d_weights = self.dot(ins["cotangent"][rows, :], value, COLUMNS_WITH_COLUMNS)
        d_logits = weights * (d_weights - statistics[:, 2:3])
        return weights, d_logits, factor * d_logits, (unmasked, products)

    def by_key(self, by_offset):
        """From scores [i, c] of the offsets c - tile along a line to scores [i, j] of keys: c = j - i + tile."""
        tile = self.lines.tile
        return pltpu.roll(by_offset, tile, 1, stride=1, stride_axis=0)[:, :tile]

    def by_offset(self, by_key):
        """The transpose of `by_key`: [i, j] -> [i, c]. A stride cannot be negative: row i moves by the bits of i."""
        tile = self.lines.tile
        x = jnp.concatenate([jnp.zeros_like(by_key), by_key], 1)
        row = lax.broadcasted_iota(jnp.int32, x.shape, 0)
        for step in (1 << bit for bit in range(tile.bit_length() - 1)):
            x = jnp.where(row & step != 0, pltpu.roll(x, 2 * tile - step, 1), x)
        return x

    def dot(self, a, b, axes):
        dtype = jnp.promote_types(a.dtype, b.dtype)
        return lax.dot_general(a.astype(dtype), b.astype(dtype), (axes, ((), ())), preferred_element_type=self.dtype)

    def mix(self, weights, features, axes=COLUMNS_WITH_ROWS):
        """A product of weights or their cotangents with features, in the dtype of these."""
        return self.dot(weights.astype(features.dtype), features, axes)


def _begin_with_zeros(first: Array, outs) -> None:
    @pl.when(first)
    def _():
        for out in outs.values():
            out[...] = jnp.zeros_like(out)
