"""The bodies of the fused kernels for TPUs: what is computed between a chunk of queries and a chunk of keys.

A kernel sees one chunk of every array, given by its place in the launch. It walks over tiles of its own chunk. For each
of them it walks over the tiles on the other side that the span of its head reaches; these bounds are known at run time.
The reached positions may begin at any row of a strip, and so may those tiles.
"""

import dataclasses
import functools
import operator

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from posattn_jax.axes import Array
from posattn_jax.ops import scores
from posattn_jax.ops.attention.tpu.pair import ROWS_WITH_ROWS, Pair
from posattn_jax.ops.attention.tpu.plan import Tile
from posattn_jax.ops.attention.tpu.walk import Met, Place, Walk, over


@dataclasses.dataclass(frozen=True)
class Kernels(Pair):
    """The kernels for one set of options.

    Attributes:
      own_queries: the tile of the kernels that walk over keys for a tile of queries.
      own_keys: the tile of the kernel that walks over queries for a tile of keys.
    """

    own_queries: Tile
    own_keys: Tile

    def forward(self, place: Place, first: dict[str, Array], last: Array, bounds, ins, outs):
        """Softmax and outputs, accumulated over the chunks of keys; statistics [chunk 2], as in `Loop`.

        Until the last chunk, the largest logit and the sum of exponentials of a query are stored in every lane.
        """
        queries, keys = self.own_queries
        features = outs["outputs"].shape[-1]

        @pl.when(first["outputs"])
        def _():
            outs["outputs"][...] = jnp.zeros_like(outs["outputs"])
            outs["largest"][...] = jnp.full_like(outs["largest"], scores.LOWEST)
            outs["total"][...] = jnp.zeros_like(outs["total"])

        def tile(place, start, others):
            own = place.member
            accumulated = outs["largest"].at[own], outs["total"].at[own], outs["outputs"]

            def step(k, carry):
                largest, total, outputs = carry
                key, first_key = others.at(k)
                met = Met(start, key, first_key=first_key)
                logits, _, _, _ = self.logits(place, bounds, ins, self.own_queries, met)
                new = jnp.maximum(largest, jnp.max(logits, 1, keepdims=True))
                weights = jnp.exp(logits - _across(new, keys))
                decay = jnp.exp(largest - new)
                total = total * decay + jnp.sum(weights, 1, keepdims=True)
                value = self.read(ins["value"], key, place.key, keys)
                return new, total, outputs * _across(decay, features) + self.mix(weights, value)

            carry = tuple(self.read(ref, start, place.query, queries) for ref in accumulated)
            *statistics, outputs = lax.fori_loop(0, others.count, step, carry)
            for ref, x in zip(accumulated, statistics, strict=False):
                self.write(ref, start, place.query, x)
            self.write(outs["outputs"], start, place.query, outputs, place)

        self.each_tile(place, bounds, place.query, place.key, self.own_queries, tile)

        @pl.when(last)
        def _():
            def finish(place):
                total = outs["total"][place.member]
                inverse = _across(1 / jnp.where(total == 0, 1, total), features)
                largest = _across(outs["largest"][place.member], features)
                lane = lax.broadcasted_iota(jnp.int32, inverse.shape, inverse.ndim - 1)
                first = self.lanes["value"].each * place.member
                # The statistics of a head are in its first two lanes.
                columns = jnp.where(lane == first, largest, inverse)
                results = {"outputs": outs["outputs"][...] * inverse, "statistics": columns}
                for name, x in results.items():
                    if self.group > 1:
                        x = jnp.where(self.belongs(x.shape, place), x, outs[name][...])
                    outs[name][...] = x

            self.each_head(place, finish)

    def to_queries(self, place: Place, first: dict[str, Array], last: Array, bounds, ins, outs):
        """The cotangents of queries, encodings and coefficients of ln G ([pairs, S], one sum per column of a tile).

        Only those in `outs` are computed. "encodings" are those of all steps of a group, "encoding" those of one step.
        """
        _begin_with_zeros(first, outs)
        of_offsets = outs.get("encoding")
        if "encodings" in outs:
            of_offsets = outs["encodings"].at[self.strips.step(place.offset)]
        queries, keys = self.own_queries

        def tile(place, start, others):
            def step(k, carry):
                carry = dict(carry)
                key, first_key = others.at(k)
                met = Met(start, key, first_key=first_key)
                _, d_logits, d_terms, (logits, products) = self.backward(place, bounds, ins, self.own_queries, met)
                if "content_query" in carry:
                    carry["content_query"] += self.mix(d_terms, self.read(ins["key"], key, place.key, keys))
                bands = self.by_offset(d_terms) if "position_query" in carry or of_offsets is not None else []
                offsets = self.offsets(place, self.own_queries, met)
                for band, by_offset in enumerate(bands):
                    if "position_query" in carry:
                        carry["position_query"] += self.mix(by_offset, ins["encoding"][band, offsets, :])
                    if of_offsets is not None:
                        query = self.read(ins["position_query"], start, place.query, queries, place)
                        of_offsets[band, offsets, :] += self.mix(by_offset, query, ROWS_WITH_ROWS)
                if "d_coefficients" in outs:
                    d_log = d_logits * logits if self.multiply else d_logits
                    for m, product in enumerate(products):
                        total = jnp.sum(d_log * product, 0, keepdims=True)
                        outs["d_coefficients"][place.member, m : m + 1, :] += total
                return carry

            names = [name for name in ("content_query", "position_query") if name in outs]
            carry = {name: self.read(outs[name], start, place.query, queries) for name in names}
            for name, total in lax.fori_loop(0, others.count, step, carry).items():
                self.write(outs[name], start, place.query, total, place)

        self.each_tile(place, bounds, place.query, place.key, self.own_queries, tile)

    def to_encoding(self, *args):
        """The cotangent of the encodings of a step alone, if those of all steps do not fit on the chip."""
        self.to_queries(*args)

    def to_keys(self, place: Place, first: dict[str, Array], last: Array, bounds, ins, outs):
        """The cotangents of keys and values, accumulated over the chunks of queries."""
        _begin_with_zeros(first, outs)
        queries, keys = self.own_keys

        def tile(place, start, others):
            def step(k, carry):
                carry = dict(carry)
                query, first_query = others.at(k)
                met = Met(query, start, first_query=first_query)
                weights, _, d_terms, _ = self.backward(place, bounds, ins, self.own_keys, met)
                cotangent = self.read(ins["cotangent"], query, place.query, queries)
                carry["value"] += self.mix(weights, cotangent, ROWS_WITH_ROWS)
                if "key" in carry:
                    content = self.read(ins["content_query"], query, place.query, queries)
                    carry["key"] += self.mix(d_terms, content, ROWS_WITH_ROWS)
                return carry

            carry = {name: self.read(out, start, place.key, keys) for name, out in outs.items()}
            for name, total in lax.fori_loop(0, others.count, step, carry).items():
                self.write(outs[name], start, place.key, total, place)

        self.each_tile(place, bounds, place.key, place.query, self.own_keys, tile, from_keys=True)

    def each_head(self, place, body):
        """Calls body(Place) for each head of a group."""
        heads = self.lanes["value"].heads

        def each(member, _):
            body(dataclasses.replace(place, member=member, head=place.group * self.group + member))

        if self.group == 1:
            each(0, None)
        else:
            lax.fori_loop(0, jnp.minimum(heads - place.group * self.group, self.group), each, None)

    def each_tile(self, place, bounds, own, other, tile, body, from_keys=False):
        """Calls body(Place, start, Walk) for each head, and each tile of chunk `own`, with the tiles of chunk `other`.

        These are the tiles within the head's span.
        """

        def of_head(place):
            self.each_tile_of_head(place, bounds, own, other, tile, functools.partial(body, place), from_keys)

        self.each_head(place, of_head)

    def each_tile_of_head(self, place, bounds, own, other, tile, body, from_keys):
        """`each_tile` for one head: calls body(start, Walk)."""
        strips = self.strips
        width, chunk = strips.width, strips.chunk
        size, other_size = tile[::-1] if from_keys else tile
        half = bounds.half(place.head)
        inside = [jnp.abs(place.offset[0]) <= half[0]]
        for where in (own, other):
            inside += [(index >= 0) & (index < count) for index, count in zip(where, strips.counts, strict=True)]
        same_plane = place.offset[0] == 0
        if self.is_causal:
            inside.append(place.offset[0] <= 0)

        @pl.when(functools.reduce(operator.and_, inside))
        def _():
            def each(i, _):
                start = pl.multiple_of(own[2] * chunk + i * size, size)
                row, last_row = over(start, width), over(start + size - 1, width)
                first, end = (row - half[1]) * width, (last_row + half[1] + 1) * width
                if self.is_causal and from_keys:
                    first = jnp.where(same_plane, jnp.maximum(first, row * width), first)
                elif self.is_causal:
                    end = jnp.where(same_plane, jnp.minimum(end, (last_row + 1) * width), end)
                first = jnp.maximum(first, other[2] * chunk)
                end = jnp.minimum(jnp.minimum(end, other[2] * chunk + chunk), strips.positions)
                first = over(first, self.step) * self.step
                body(start, Walk(first, other[2] * chunk + chunk - other_size, other_size, self.step, end))

            in_use = over(jnp.minimum(strips.positions - own[2] * chunk, chunk) + size - 1, size)
            lax.fori_loop(0, in_use, each, None)


def _begin_with_zeros(first: dict[str, Array], outs) -> None:
    """Sets each output to 0 in the first step of those that it is the sum of."""
    for name, out in outs.items():

        @pl.when(first[name])
        def _(out=out):
            out[...] = jnp.zeros_like(out)


def _across(x, columns):
    """Repeats or cuts x, whose columns are all equal, to `columns` columns."""
    return jnp.concatenate([x] * -(-columns // x.shape[-1]), -1)[..., :columns]
