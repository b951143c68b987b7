"""The logits and weights of a tile of queries and a tile of keys, and their cotangents, in the fused TPU kernels."""

import dataclasses
import functools
import operator

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from posattn_jax.ops import scores
from posattn_jax.ops.attention.tpu import skew
from posattn_jax.ops.attention.tpu.strips import Lanes, Strips
from posattn_jax.ops.attention.tpu.walk import over
from posattn_jax.ops.precision import promoted

# The axes along which two tiles [rows, columns] are multiplied.
ROWS_WITH_ROWS = ((0,), (0,))
COLUMNS_WITH_ROWS = ((1,), (0,))
COLUMNS_WITH_COLUMNS = ((1,), (1,))


@dataclasses.dataclass(frozen=True)
class Pair:
    """The computation on two tiles that meet, for one set of options.

    Attributes:
      strips: how the grid is arranged.
      lanes: how the heads and features are arranged, by array.
      step: tiles begin at multiples of this.
      dtype: the dtype of scores and accumulators.
      scaling, is_causal: as in `Problem`.
      multiply: whether `span_mode` is "multiply".
      pairs: the (i, j) of ln G = sum_ij coefficient_ij offset_i offset_j, in the frame; empty without a span.
      masks_offsets: as in `Problem`.
    """

    strips: Strips
    lanes: dict[str, Lanes]
    step: int
    dtype: jnp.dtype
    scaling: float
    multiply: bool
    is_causal: bool
    pairs: tuple[tuple[int, int], ...]
    masks_offsets: bool

    @property
    def group(self) -> int:
        """The number of heads of a group."""
        return self.lanes["value"].group

    def read(self, ref, start, where, size, place=None):
        """A tile of a chunk: [size, _]. With `place`, only the features of its head, and 0 in the place of others."""
        x = ref[self.rows(start, where, size)].reshape(size, ref.shape[-1])
        if place is None or self.group == 1:
            return x
        # A factor and no selection: see `skew.by_offset`.
        return x * self.belongs(x.shape, place).astype(x.dtype)

    def write(self, ref, start, where, x, place=None):
        """The inverse of `read`. With `place`, the features of other heads stay."""
        if place is not None and self.group > 1:
            x = jnp.where(self.belongs(x.shape, place), x, self.read(ref, start, where, len(x)))
        ref[self.rows(start, where, len(x))] = x.reshape(len(x) // self.strips.row, *ref.shape[1:])

    def rows(self, start, where, size):
        """The rows of a chunk in which a tile lies."""
        first = over(start - where[2] * self.strips.chunk, self.strips.row)
        return pl.ds(first, size // self.strips.row)

    def statistics(self, ins, place, met, queries):
        """The statistics of a head, in the first lanes: largest logit, 1 / sum, and what is subtracted backward."""
        x = self.read(ins["statistics"], met.query, place.query, queries)
        if self.group == 1:
            return x
        each, width = self.lanes["value"].each, x.shape[-1]
        return pltpu.roll(x, _turn(-place.member * each, width), 1)

    def belongs(self, shape, place):
        """Whether a feature belongs to the head of `place`."""
        each = self.lanes["value"].each
        return over(lax.broadcasted_iota(jnp.int32, shape, len(shape) - 1), each) == place.member

    def offsets(self, place, tile, met):
        """The rows, in the bands, of the offsets from a tile of queries to a tile of keys."""
        start = met.key - met.query - tile.queries - (place.offset[2] - 1) * self.strips.chunk
        return pl.ds(pl.multiple_of(start, self.step), tile.queries + tile.keys)

    def logits(self, place, bounds, ins, tile, met):
        """The logits of two tiles; the logits before masking, the factor of the terms, and the products of offsets."""
        terms = jnp.zeros(tile, self.dtype)
        if "key" in ins:
            query = self.read(ins["content_query"], met.query, place.query, tile.queries, place)
            key = self.read(ins["key"], met.key, place.key, tile.keys)
            terms += self.dot(query, key, COLUMNS_WITH_COLUMNS)
        if "encoding" in ins:
            query = self.read(ins["position_query"], met.query, place.query, tile.queries, place)
            offsets = self.offsets(place, tile, met)
            bands = [
                self.dot(query, ins["encoding"][band, offsets, :], COLUMNS_WITH_COLUMNS)
                for band in range(self.strips.bands)
            ]
            if len(bands) > 1:
                bands = [jnp.where(self.borrows((tile.queries, sum(tile))), bands[1], bands[0])]
            terms += skew.by_key(bands[0])
        rows, columns = self.apart(place, tile, met)
        factor, logits, products = self.scaling, self.scaling * terms, []
        masks = []
        if self.pairs:
            offsets = [jnp.asarray(place.offset[0]).astype(self.dtype), rows, columns]
            products = [offsets[i] * offsets[j] for i, j in self.pairs]
            coefficients = ins["coefficients"][place.member, :, : tile.keys]
            log_gaussian = sum(coefficients[m : m + 1] * product for m, product in enumerate(products))
            if any(i != j for i, j in self.pairs):
                log_gaussian = jnp.minimum(log_gaussian, 0)  # rounding may make it positive
            if self.multiply:
                factor = self.scaling * jnp.exp(log_gaussian)
                logits = factor * terms
            else:
                logits += log_gaussian
            half = bounds.half(place.head)
            masks = [jnp.abs(rows) <= jnp.asarray(half[1]).astype(self.dtype)]
            if self.strips.width > 1:  # otherwise the grid has one column
                masks.append(jnp.abs(columns) <= jnp.asarray(half[2]).astype(self.dtype))
        if self.is_causal:
            before = jnp.asarray(place.offset[0] < 0)
            masks.append((rows * self.strips.frame[2] + columns <= 0) | before)
        masked = logits + self.addend(place, ins, tile, met)
        if self.masks_offsets:
            masked = jnp.where(terms <= scores.LOWEST, scores.MASKED, masked)
        if masks:
            masked = jnp.where(functools.reduce(operator.and_, masks), masked, scores.MASKED)
        return masked, logits, factor, products

    def apart(self, place, tile, met):
        """The offsets, in rows and in columns, from a tile's queries to the keys of another: [T, S] each."""
        width = self.strips.width

        def index(axis):
            shape = [1, 1]
            shape[axis] = tile[axis]
            i = lax.broadcasted_iota(jnp.int32, shape, axis)
            return over(i, width), i & (width - 1)

        (query_row, query_column), (key_row, key_column) = index(0), index(1)
        key_row += over(met.key - met.query, width)
        key_column += place.offset[1] * width
        ends = ((key_row, query_row), (key_column, query_column))
        return [key.astype(self.dtype) - query.astype(self.dtype) for key, query in ends]

    def addend(self, place, ins, tile, met):
        """The addend [1, S] that hides keys: those that are masked, off the grid, or part of an earlier tile too."""
        lanes = skew.lanes_of(*tile)
        start = met.key - place.key[2] * self.strips.chunk
        aligned = over(start, lanes) * lanes
        addend = ins["key_addend"][:, pl.ds(pl.multiple_of(aligned, lanes), tile.keys + lanes)]
        addend = pltpu.roll(addend, _turn(aligned - start, tile.keys + lanes), 1)[0:1, : tile.keys]
        position = met.key + lax.broadcasted_iota(jnp.int32, (1, tile.keys), 1)
        return jnp.where(position >= met.first_key, addend, scores.MASKED)

    def backward(self, place, bounds, ins, tile, met):
        """Weights; the cotangents of logits and terms, as in "tiled"; the unmasked logits and products of `logits`."""
        logits, unmasked, factor, products = self.logits(place, bounds, ins, tile, met)
        statistics = self.statistics(ins, place, met, tile.queries)
        position = met.query + lax.broadcasted_iota(jnp.int32, (tile.queries, 1), 0)
        largest = jnp.where(position >= met.first_query, statistics[:, 0:1], -scores.MASKED)
        weights = jnp.exp(logits - largest) * statistics[:, 1:2]
        value = self.read(ins["value"], met.key, place.key, tile.keys)
        cotangent = self.read(ins["cotangent"], met.query, place.query, tile.queries, place)
        d_weights = self.dot(cotangent, value, COLUMNS_WITH_COLUMNS)
        d_logits = weights * (d_weights - statistics[:, 2:3])
        return weights, d_logits, factor * d_logits, (unmasked, products)

    def by_offset(self, x):
        """Turns values by key into values by offset, one array for each band."""
        x = skew.by_offset(x)
        if self.strips.bands == 1:
            return [x]
        second = x * self.borrows(x.shape).astype(x.dtype)
        return [x - second, second]

    def borrows(self, shape):
        """Whether an offset is in the second band, for each query and column."""
        within = self.strips.width - 1
        query, offset = (lax.broadcasted_iota(jnp.int32, shape, axis) & within for axis in (0, 1))
        return query + offset > within

    def dot(self, a, b, axes):
        dtype = promoted(a.dtype, b.dtype)
        return lax.dot_general(a.astype(dtype), b.astype(dtype), (axes, ((), ())), preferred_element_type=self.dtype)

    def mix(self, weights, features, axes=COLUMNS_WITH_ROWS):
        """The product of weights, or their cotangents, with features, in the dtype of the features."""
        return self.dot(weights.astype(features.dtype), features, axes)


def _turn(shift, size):
    """A shift to the right that equals `shift`, which may be negative, to the left."""
    return jnp.where(shift < 0, shift + size, shift)
