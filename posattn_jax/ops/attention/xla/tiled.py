"""Attention by "tiled": cost and memory depend on the span.

Queries are cut into tiles. In a step of the loop every tile meets the window of keys that starts at one offset, `base`,
from its first query. So the encodings P and the Gaussian G between tile and window are the same for all tiles and all
examples, and a step consists of dense products. It runs over groups of tiles whose scores fit into a cache. The number
of steps comes from sigma at run time, so that one program serves every span. The softmax is accumulated over the steps.
The backward pass runs the same loop and computes the weights again.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from posattn_jax.ops import grid, scores, span
from posattn_jax.ops.attention.problem import Problem
from posattn_jax.ops.attention.xla.loop import Loop, axes_varied_over, scan, varying
from posattn_jax.ops.attention.xla.tiles import Tiling, tilings
from posattn_jax.ops.precision import einsum, plus, promoted


def window_loops(problem: Problem) -> list["WindowLoop"]:
    """One loop for each tiling that may be the best; the span decides which one is."""
    b, _, h, _ = problem.query.shape
    itemsize = problem.dtype.itemsize
    choices = tilings(problem.grid_shape, b, h, itemsize, problem.static_half, problem.query_shape)
    return [WindowLoop(problem, tiling, heads) for tiling, heads in choices]


class WindowLoop(Loop):
    """The loop for one tiling, forward and backward."""

    def __init__(self, problem: Problem, tiling: Tiling, heads: int):
        super().__init__(problem, heads)
        self.tiling = tiling

    def cost(self, sigma):
        return self.tiling.cost(self.reach(sigma))

    def reach(self, sigma):
        """The half-span in each dimension, the largest over all heads: static, or from sigma at run time."""
        if self.problem.static_half is not None:
            return self.problem.static_half
        half = self.problem.half_of(sigma)
        return jnp.where(jnp.isnan(half), 0, half).max(0).astype(jnp.int32)

    def run(self, sigma, step, carry):
        """Runs carry = step(base, carry) for every offset `base` of a window from its tile."""
        reach = self.reach(sigma)
        counts = self.tiling.steps(reach)
        total = math.prod(counts)

        def body(index, carry):
            where = jnp.stack(jnp.unravel_index(index, counts)).astype(jnp.int32)
            return step(where * np.array(self.tiling.window, np.int32) - jnp.asarray(reach, jnp.int32), carry)

        if isinstance(total, int) and total == 1:
            return body(0, carry)
        return lax.fori_loop(0, total, body, carry)

    def positional(self, learned, base):
        """The parts of a step that depend only on positions: P [h, queries, keys, d], ln G [h|1, queries, keys]."""
        positional = {}
        if "encoding" in learned:
            positional["p"] = self.tiling.toeplitz(learned["encoding"])
        if "sigma" in learned:
            offsets = plus(base, self.tiling.relative)  # [queries, keys, p]
            coordinates = grid.normalise(offsets, self.problem.grid_shape, self.problem.reference_shape)
            log_gaussian = span.log_modulation(coordinates, learned["sigma"], self.problem.span_mode)
            positional["log_gaussian"] = log_gaussian.astype(self.dtype)
        return positional

    def modulation(self, positional, sigma, base):
        """The factor and the addend that turn terms into logits, including the masks that all tiles share."""
        offsets = plus(base, self.tiling.relative)
        factor, addend = self.problem.scaling, 0.0
        if sigma is not None:
            inside = span.inside_span(offsets, self.problem.half_of(sigma))
            addend = scores.masked_out(inside, self.dtype)[None, :, None]
            if self.multiply:
                factor *= jnp.exp(positional["log_gaussian"])[None, :, None]
            else:
                addend += positional["log_gaussian"][None, :, None]
        if self.problem.masks_offsets:
            addend += scores.masked_out(scores.shown(positional["p"][..., -1]), self.dtype)[None, :, None]
        if self.problem.is_causal:
            addend += scores.masked_out(grid.not_after(offsets, self.problem.is_causal), self.dtype)[None, None, None]
        return factor, addend

    def logits(self, queries, keys, p, modulation, off_grid):
        """The logits [b h tiles queries keys].

        Each term is modulated before the terms are added. Otherwise the CPU compiler would repeat their sum in every
        operation that reads the logits.
        """
        factor, addend = modulation
        logits = addend + off_grid
        if p is not None:  # one product over all tiles for each query of a tile: [h t b i s]
            by_query = lax.dot_general(
                queries["position_query"], p, (((4,), (3,)), ((1, 3), (0, 1))), preferred_element_type=self.dtype
            )
            logits += factor * by_query.transpose(2, 0, 3, 1, 4)
        if keys is not None:
            logits += factor * self.problem.product("bhitd,bhids->bhits", queries["content_query"], keys)
        return logits

    def off_grid(self, arrays, ready, first):
        """A very negative addend where a tile's window holds no key: [groups, b|1, 1, tiles, 1, keys].

        It is computed before the loop over groups, which would otherwise compute it again for every score.
        """
        tiling, (low, high) = self.tiling, self.key_range(arrays)
        on_grid = jnp.ones((len(first), len(tiling.starts), *(1 for _ in tiling.window)), bool)
        for axis, window in enumerate(tiling.window):
            position = plus(plus(first[:, None, axis, None], tiling.starts[:, axis, None]), np.arange(window))
            on_axis = (position >= low[axis]) & (position < high[axis])
            on_grid &= jnp.expand_dims(on_axis, [2 + i for i in range(len(tiling.window)) if i != axis])
        on_grid = on_grid.reshape(len(first), 1, 1, len(tiling.starts), 1, -1)
        addend = scores.masked_out(on_grid, self.dtype)
        if "key_addend" in ready:
            addend += jax.vmap(functools.partial(tiling.windows, ready["key_addend"]))(first)
        return addend

    def apart(self, ready, segments, first):
        """A very negative addend for pairs of different segments: [b 1 tiles queries keys]."""
        if segments is None:
            return 0.0
        return scores.masked_out(segments == self.tiling.windows(ready["segments"], first), self.dtype)

    def segments(self, arrays):
        """The segments of the queries of every tile."""
        return self.tiling.queries(arrays["segments"]) if "segments" in arrays else None

    def prepared(self, arrays):
        """The arrays in the form that the steps read: tiles of queries, wrapped keys, padded encodings."""
        tiling = self.tiling
        ready = {name: tiling.queries(x) for name, x in self.of_queries(arrays).items()}
        wrapped = ("key", "value", "key_addend", "segments")
        ready |= {name: tiling.wrap(arrays[name]) for name in wrapped if name in arrays}
        if "encoding" in arrays:
            padding = [(t - 1, t + w) for t, w in zip(tiling.tile, tiling.window, strict=True)]
            ready["encoding"] = jnp.pad(arrays["encoding"], [*padding, (0, 0), (0, 0)])
        if "sigma" in arrays:
            ready["sigma"] = arrays["sigma"]
        return ready

    def band(self, base):
        """The start of a step's band of offsets in the padded encoding, and the number of offsets in each dimension."""
        size = [t + w - 1 for t, w in zip(self.tiling.tile, self.tiling.window, strict=True)]
        return (*plus(base, np.array(self.problem.encoded_half)), 0, 0), size

    def learned(self, ready, base):
        learned = {}
        if "encoding" in ready:
            start, size = self.band(base)
            size = (*size, *ready["encoding"].shape[-2:])
            learned["encoding"] = lax.dynamic_slice(ready["encoding"], start, size)
        if "sigma" in ready:
            learned["sigma"] = ready["sigma"]
        return learned

    def some_forward(self, arrays):
        """As in `Loop`, accumulated over the steps."""
        ready = self.prepared(arrays)
        tiling = self.tiling
        queries = self.of_queries(ready)
        like = next(iter(queries.values()))

        def step(base, carry):
            positional = self.positional(self.learned(ready, base), base)
            modulation = self.modulation(positional, ready.get("sigma"), base)
            first = plus(base + self.first_query(arrays), tiling.origins)

            def group(_, xs):
                first, off_grid, queries, segments, (largest, total, outputs) = xs
                keys = tiling.windows(ready["key"], first) if "key" in ready else None
                hidden = off_grid + self.apart(ready, segments, first)
                logits = self.logits(queries, keys, positional.get("p"), modulation, hidden)
                new = jnp.maximum(largest, logits.max(-1))
                weights = jnp.exp(logits - new[..., None])
                decay = jnp.exp(largest - new)
                total = total * decay + weights.sum(-1)
                values = tiling.windows(ready["value"], first)
                added = self.problem.product("bhits,bhids->bhitd", weights.astype(values.dtype), values)
                return None, (new, total, outputs * decay[..., None] + added)

            xs = (first, self.off_grid(arrays, ready, first), queries, self.segments(arrays), carry)
            return scan(group, None, xs)[1]

        start = jnp.full(like.shape[:-1], scores.LOWEST, self.dtype)
        carry = (start, jnp.zeros_like(start), jnp.zeros((*like.shape[:-1], arrays["value"].shape[-1]), self.dtype))
        carry = varying(carry, axes_varied_over(arrays["value"]))
        largest, total, outputs = self.run(ready.get("sigma"), step, carry)
        total = jnp.where(total == 0, 1, total)
        statistics = jnp.stack([largest, 1 / total], -1)
        return tiling.grid(outputs / total[..., None]), None, tiling.grid(statistics)

    def some_backward(self, arrays, outputs, statistics, cotangent, _):
        """The cotangents of `arrays`, with A the weights, which are computed again, and L the logits.

        dV_s = sum_t A_ts dO_t        dL_ts = A_ts (dO_t . V_s - dO_t . O_t)        dterms = factor dL
        """
        ready = self.prepared(arrays)
        tiling = self.tiling
        queries = self.of_queries(ready)
        cotangent = cotangent.astype(self.dtype)
        removed = tiling.queries((cotangent * outputs).sum(-1, keepdims=True))[..., 0]
        cotangent = tiling.queries(cotangent)
        statistics = tiling.queries(statistics)

        def zeros(tree):
            zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, promoted(x, self.dtype)), tree)
            return varying(zeros, axes_varied_over(arrays["value"]))

        def step(base, carry):
            d_queries, d_sides, d_learned = carry
            learned = self.learned(ready, base)
            positional, to_learned = jax.vjp(lambda learned: self.positional(learned, base), learned)
            p = positional.get("p")
            modulation = self.modulation(positional, ready.get("sigma"), base)
            first = plus(base + self.first_query(arrays), tiling.origins)

            def group(carry, xs):
                d_sides, d_positional = carry
                first, off_grid, queries, segments, cotangent, removed, statistics, d_queries = xs
                largest, inverse_total = statistics[..., :1], statistics[..., 1:]
                windows = {name: tiling.windows(ready[name], first) for name in d_sides}
                hidden = off_grid + self.apart(ready, segments, first)
                logits = self.logits(queries, windows.get("key"), p, modulation, hidden)
                weights = jnp.exp(logits - largest) * inverse_total
                d_weights = self.problem.product("bhitd,bhids->bhits", cotangent, windows["value"])
                d_logits = weights * (d_weights - removed[..., None])
                d_terms = d_logits * modulation[0]
                # The queries come first in these products: the large factor then needs no transpose.
                d_windows = {"value": einsum("bhitd,bhits->bhids", cotangent, weights)}
                added, added_positional = {}, {}
                if "key" in windows:
                    added["content_query"] = einsum("bhits,bhids->bhitd", d_terms, windows["key"])
                    d_windows["key"] = einsum("bhitd,bhits->bhids", queries["content_query"], d_terms)
                if p is not None:
                    by_query = d_terms.transpose(1, 3, 0, 2, 4)  # [h t b i s]
                    d_query = lax.dot_general(by_query, p, (((4,), (2,)), ((0, 1), (0, 1))))
                    added["position_query"] = d_query.transpose(2, 0, 3, 1, 4)
                    query = queries["position_query"].transpose(1, 3, 0, 2, 4)
                    added_positional["p"] = einsum("htbid,htbis->htds", query, by_query).swapaxes(-1, -2)
                if "log_gaussian" in positional:
                    d_log = d_logits * logits if self.multiply else d_logits
                    d_log = d_log.sum((0, 2))  # masked entries are 0 times a large number
                    each_head = len(positional["log_gaussian"]) > 1
                    added_positional["log_gaussian"] = d_log if each_head else d_log.sum(0, keepdims=True)
                d_sides = {name: tiling.add_windows(total, d_windows[name], first) for name, total in d_sides.items()}
                d_queries = jax.tree.map(plus, d_queries, added)
                return (d_sides, jax.tree.map(jnp.add, d_positional, added_positional)), d_queries

            off_grid = self.off_grid(arrays, ready, first)
            xs = (first, off_grid, queries, self.segments(arrays), cotangent, removed, statistics, d_queries)
            (d_sides, d_positional), d_queries = scan(group, (d_sides, zeros(positional)), xs)
            (added,) = to_learned(jax.tree.map(lambda d, x: d.astype(x.dtype), d_positional, positional))
            d_learned = dict(d_learned)
            if "encoding" in d_learned:
                start, _ = self.band(base)
                added_band = added["encoding"]
                total = d_learned["encoding"]
                d_learned["encoding"] = lax.dynamic_update_slice(
                    total, plus(lax.dynamic_slice(total, start, added_band.shape), added_band), start
                )
            if "sigma" in d_learned:
                d_learned["sigma"] = plus(d_learned["sigma"], added["sigma"])
            return d_queries, d_sides, d_learned

        carry = (
            zeros(queries),
            zeros({name: ready[name] for name in ("key", "value") if name in ready}),
            zeros({name: ready[name] for name in ("encoding", "sigma") if name in ready}),
        )
        d_queries, d_sides, d_learned = self.run(ready.get("sigma"), step, carry)
        learned = {name: x for name, x in arrays.items() if name not in ("key_addend", "segments", "block")}
        prepared, unprepare = jax.vjp(self.prepared, learned)
        d_ready = d_queries | d_sides | d_learned
        return unprepare({name: d_ready[name].astype(x.dtype) for name, x in prepared.items()})[0]
