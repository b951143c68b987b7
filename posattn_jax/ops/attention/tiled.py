"""Layout "tiled": cost and memory follow the span.

Queries are cut into tiles. A trip of the loop lets every tile meet the window of keys at one offset from it, so the
encodings P and the Gaussian G between them are the same for all tiles and the batch, and everything is dense products.
The number of trips comes from sigma at run time: one program serves every span. Softmax is accumulated over the trips;
the backward pass runs the same loop and computes the weights again.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from posattn_jax.axes import Array, Query
from posattn_jax.ops import grid, scores, span
from posattn_jax.ops.attention.problem import Problem
from posattn_jax.ops.attention.tiles import Tiling, choose_tiling

# Above every masked score and below every other: where the largest score of a query starts.
LOWEST = scores.MASKED / 10


def tiled_attention(problem: Problem) -> tuple[Query, None]:
    """Outputs [b t h d]."""
    problem.check_local("tiled")
    b, n, h, d = problem.query.shape
    shape = problem.grid_shape
    tiling, heads = choose_tiling(problem)

    def by_head(x, axis):
        """Splits the axis of heads into [groups of heads, ..., heads of a group, ...]."""
        x = x.reshape(*x.shape[:axis], h // heads, heads, *x.shape[axis + 1 :])
        return jnp.moveaxis(x, axis, 0)

    def features(x):
        """[b n h d] -> [groups of heads, b, heads, *S, d]."""
        return by_head(jnp.moveaxis(x, 2, 1).reshape(b, h, *shape, d), 1)

    arrays = {"value": features(problem.value)}
    if problem.key is not None:
        arrays["key"] = features(problem.key)
        arrays["content_query"] = features(problem.content_queries(problem.query))
    if problem.relative_encoding is not None:
        arrays["encoding"] = by_head(problem.relative_encoding, len(shape))
        arrays["position_query"] = features(problem.position_queries(problem.query))
    if problem.sigma is not None:
        sigma = problem.sigma.astype(jnp.result_type(jnp.float32, problem.sigma))
        arrays["sigma"] = by_head(sigma, 0) if sigma.ndim == 2 else jnp.broadcast_to(sigma, (h // heads, 1, len(shape)))
    attend = functools.partial(_attend, problem, tiling)
    if heads == h:
        outputs = attend({name: array[0] for name, array in arrays.items()})[None]
    else:
        outputs = lax.map(attend, arrays)
    outputs = jnp.moveaxis(outputs.reshape(h // heads, b, heads, n, d), 3, 1)  # [groups, n, b, heads, d]
    return jnp.moveaxis(outputs, 0, 2).reshape(n, b, h, d).swapaxes(0, 1).astype(problem.value.dtype), None


def _attend(problem: Problem, tiling: Tiling, arrays: dict[str, Array]) -> Array:
    """Outputs [b h *S d] of some heads, whose arrays are features [b h *S d], encoding [*R h d] and sigma [h|1 p]."""
    loop = _Loop(problem, tiling)

    @jax.custom_vjp
    def attend(arrays):
        return loop.forward(arrays)[0]

    attend.defvjp(loop.forward, loop.backward)
    return attend(arrays)


class _Loop:
    """The loop over windows, for what `problem` asks: which terms, masks and span."""

    def __init__(self, problem: Problem, tiling: Tiling):
        self.problem = problem
        self.tiling = tiling
        self.scale = 1 / math.sqrt(problem.query.shape[-1]) if problem.scale is None else problem.scale
        self.dtype = problem.dtype

    def trips(self, sigma):
        """The reach of the loop and the number of its trips: integers where the span is static."""
        t, w = np.array(self.tiling.tile), np.array(self.tiling.window)
        if self.problem.static_half is not None:
            reach = np.array(self.problem.static_half)
            counts = -(-(t + 2 * reach) // w)
            return reach, counts, int(np.prod(counts))
        half = self.half(sigma)
        reach = jnp.where(jnp.isnan(half), 0, half).max(0).astype(jnp.int32)
        counts = -(-(t + 2 * reach) // w)
        return reach, counts, jnp.prod(counts)

    def half(self, sigma):
        return span.half_span(sigma, self.problem.threshold, self.problem.grid_shape, self.problem.reference_shape)

    def run(self, sigma, trip, carry):
        """carry = trip(base, carry) for the offset `base` of every window from its tile."""
        reach, counts, total = self.trips(sigma)

        def body(index, carry):
            where = jnp.stack(jnp.unravel_index(index, counts)) if len(counts) > 1 else jnp.stack([index])
            return trip(where * np.array(self.tiling.window) - reach, carry)

        if isinstance(total, int) and total == 1:
            return trip(jnp.asarray(-reach), carry)
        return lax.fori_loop(0, total, body, carry)

    def offsets(self, base):
        """Key minus query, for the queries of a tile and the keys of its window: [queries, keys, p]."""
        return base + jnp.asarray(self.tiling.relative)

    def shared(self, learned, base):
        """What all tiles share in a trip: P [h, queries, keys, d], and the gain and addend of the scores."""
        made = {}
        if "encoding_window" in learned:
            made["p"] = self.tiling.pairs(learned["encoding_window"])
        if "sigma" in learned:
            coordinates = grid.normalise(self.offsets(base), self.problem.grid_shape, self.problem.reference_shape)
            log_gaussian = span.log_gaussian(coordinates, learned["sigma"]).astype(self.dtype)[:, None]
            if self.problem.span_mode == "multiply":
                made["gain"] = self.scale * jnp.exp(log_gaussian)
            else:
                made["addend"] = log_gaussian
        return made

    def logits(self, queries, slab, shared):
        """[b h tiles queries keys]."""
        terms = 0.0
        if "key" in slab:
            terms += jnp.einsum(
                "bhitd,bhisd->bhits",
                queries["content_query"],
                self.tiling.windows(slab["key"]),
                preferred_element_type=self.dtype,
            )
        if "p" in shared:
            by_query = lax.dot_general(  # [h t b i s]: for every query of a tile one product over all tiles
                queries["position_query"],
                shared["p"],
                (((4,), (3,)), ((1, 3), (0, 1))),
                preferred_element_type=self.dtype,
            )
            terms += by_query.transpose(2, 0, 3, 1, 4)
        return terms * shared.get("gain", self.scale) + shared.get("addend", 0.0)

    def masked(self, arrays, mask, base, origin, start):
        """0 where the queries of a group attend to a key, and far below it elsewhere: two addends."""
        tiling = self.tiling
        shape = tiling.grid_shape
        offsets = self.offsets(base)
        inside = jnp.ones((1, 1, 1, *offsets.shape[:2]), bool)
        if "sigma" in arrays:
            inside = span.inside_span(offsets, self.half(arrays["sigma"]))[:, None, None]
        if self.problem.is_causal:
            inside &= _not_after(offsets)
        p = len(shape)
        on_grid = jnp.ones((1, 1, *tiling.slab, 1), bool)
        for axis in range(p):
            position = origin[axis] + base[axis] + np.arange(tiling.slab[axis])
            on_axis = (position >= 0) & (position < shape[axis])
            on_grid &= on_axis.reshape(-1, *(1,) * (p - axis))
        if mask is not None:
            on_grid &= lax.dynamic_slice(mask, start, (mask.shape[0], 1, *tiling.slab, 1))
        hidden = jnp.where(inside, 0, scores.MASKED).astype(self.dtype)
        off = jnp.where(on_grid, 0, scores.MASKED).astype(self.dtype)
        return hidden + tiling.windows(off)[..., None, :, 0]

    def prepared(self, arrays):
        """The arrays as the trips read them: tiles of queries, wrapped keys, padded encodings."""
        tiling = self.tiling
        ready = {name: tiling.queries(arrays[name]) for name in ("content_query", "position_query") if name in arrays}
        ready |= {name: tiling.wrap(arrays[name]) for name in ("key", "value") if name in arrays}
        if "encoding" in arrays:
            padding = [(t - 1, t + w) for t, w in zip(tiling.tile, tiling.window, strict=True)]
            ready["encoding"] = jnp.pad(arrays["encoding"], [*padding, (0, 0), (0, 0)])
        if "sigma" in arrays:
            ready["sigma"] = arrays["sigma"]
        mask = self.problem.key_mask
        if mask is not None:
            mask = tiling.wrap(mask.reshape(mask.shape[0], 1, *tiling.grid_shape, 1))
        return ready, mask

    def window_of_encoding(self, base):
        """Where the offsets of a trip start in the padded encoding, and how many there are."""
        size = [t + w - 1 for t, w in zip(self.tiling.tile, self.tiling.window, strict=True)]
        return (*(base + np.array(self.tiling.grid_shape) - 1), 0, 0), size

    def learned(self, ready, base):
        made = {}
        if "encoding" in ready:
            start, size = self.window_of_encoding(base)
            made["encoding_window"] = lax.dynamic_slice(ready["encoding"], start, (*size, *ready["encoding"].shape[-2:]))
        if "sigma" in ready:
            made["sigma"] = ready["sigma"]
        return made

    def slab(self, ready, start):
        return {
            name: lax.dynamic_slice(ready[name], start, (*ready[name].shape[:2], *self.tiling.slab, ready[name].shape[-1]))
            for name in ("key", "value")
            if name in ready
        }

    def start(self, origin, base):
        where = (origin + base) % np.array(self.tiling.grid_shape)
        return (0, 0, *where, 0)

    def forward(self, arrays):
        ready, mask = self.prepared(arrays)
        tiling = self.tiling
        queries = {name: ready[name] for name in ("content_query", "position_query") if name in ready}
        like = next(iter(queries.values()))
        value = ready["value"]

        def trip(base, carry):
            shared = self.shared(self.learned(ready, base), base)

            def group(_, xs):
                origin, queries, (largest, total, outputs) = xs
                start = self.start(origin, base)
                slab = self.slab(ready, start)
                logits = self.logits(queries, slab, shared) + self.masked(ready, mask, base, origin, start)
                logits = lax.optimization_barrier(logits)
                new = jnp.maximum(largest, logits.max(-1))
                weights = jnp.exp(logits - new[..., None])
                decay = jnp.exp(largest - new)
                total = total * decay + weights.sum(-1)
                values = tiling.windows(slab["value"])
                added = jnp.einsum(
                    "bhits,bhisd->bhitd", weights.astype(values.dtype), values, preferred_element_type=self.dtype
                )
                return None, (new, total, outputs * decay[..., None] + added)

            return self.scan(group, None, (jnp.asarray(tiling.origins), queries, carry))[1]

        start = jnp.full(like.shape[:-1], LOWEST, self.dtype)
        carry = (start, jnp.zeros_like(start), jnp.zeros((*like.shape[:-1], value.shape[-1]), self.dtype))
        largest, total, outputs = self.run(ready.get("sigma"), trip, carry)
        total = jnp.where(total == 0, 1, total)
        outputs = tiling.grid(outputs / total[..., None])
        return outputs, (arrays, outputs, largest + jnp.log(total))

    def scan(self, body, carry, xs):
        """As lax.scan over the groups; a single group needs no loop."""
        if len(self.tiling.origins) > 1:
            return lax.scan(body, carry, xs)
        carry, ys = body(carry, jax.tree.map(lambda x: x[0], xs))
        return carry, jax.tree.map(lambda y: y[None], ys)

    def backward(self, residuals, cotangent):
        arrays, outputs, log_total = residuals
        ready, mask = self.prepared(arrays)
        tiling = self.tiling
        names = [name for name in ("content_query", "position_query") if name in ready]
        queries = {name: ready[name] for name in names}
        cotangent = cotangent.astype(self.dtype)
        removed = tiling.queries((cotangent * outputs).sum(-1, keepdims=True))[..., 0]
        cotangent = tiling.queries(cotangent)
        zeros = functools.partial(jax.tree.map, lambda x: jnp.zeros(x.shape, jnp.result_type(x, self.dtype)))

        def trip(base, carry):
            d_queries, d_slabs, d_learned = carry
            learned = self.learned(ready, base)
            shared, to_learned = jax.vjp(lambda learned: self.shared(learned, base), learned)

            def group(carry, xs):
                d_slabs, d_shared = carry
                origin, queries, cotangent, removed, log_total, d_queries = xs
                start = self.start(origin, base)
                slab = self.slab(ready, start)
                logits, to_terms = jax.vjp(self.logits, queries, slab, shared)
                masked = self.masked(ready, mask, base, origin, start)
                weights = lax.optimization_barrier(jnp.exp(logits + masked - log_total[..., None]))
                values, to_value = jax.vjp(tiling.windows, slab["value"])
                d_weights = jnp.einsum("bhitd,bhisd->bhits", cotangent, values, preferred_element_type=self.dtype)
                added, d_slab, d_more = to_terms(weights * (d_weights - removed[..., None]))
                d_values = jnp.einsum("bhits,bhitd->bhisd", weights, cotangent)
                d_slab["value"] = to_value(d_values.astype(values.dtype))[0]
                d_slabs = {
                    name: lax.dynamic_update_slice(
                        total, lax.dynamic_slice(total, start, d_slab[name].shape) + d_slab[name], start
                    )
                    for name, total in d_slabs.items()
                }
                d_queries = jax.tree.map(jnp.add, d_queries, added)
                return (d_slabs, jax.tree.map(jnp.add, d_shared, d_more)), d_queries

            xs = (jnp.asarray(tiling.origins), queries, cotangent, removed, log_total, d_queries)
            (d_slabs, d_shared), d_queries = self.scan(group, (d_slabs, zeros(shared)), xs)
            (added,) = to_learned(jax.tree.map(lambda d, x: d.astype(x.dtype), d_shared, shared))
            d_learned = dict(d_learned)
            if "encoding" in d_learned:
                start, _ = self.window_of_encoding(base)
                added_window = added["encoding_window"]
                total = d_learned["encoding"]
                d_learned["encoding"] = lax.dynamic_update_slice(
                    total, lax.dynamic_slice(total, start, added_window.shape) + added_window, start
                )
            if "sigma" in d_learned:
                d_learned["sigma"] += added["sigma"]
            return d_queries, d_slabs, d_learned

        carry = (
            zeros(queries),
            zeros({name: ready[name] for name in ("key", "value") if name in ready}),
            zeros({name: ready[name] for name in ("encoding", "sigma") if name in ready}),
        )
        d_queries, d_slabs, d_learned = self.run(ready.get("sigma"), trip, carry)
        _, unprepare = jax.vjp(lambda arrays: self.prepared(arrays)[0], arrays)
        made = d_queries | d_slabs | d_learned
        return unprepare({name: made[name].astype(ready[name].dtype) for name in ready})


def _not_after(offsets):
    """Row-major s <= t: the first of the offsets that is not 0 is negative, or all are 0."""
    after = jnp.zeros(offsets.shape[:-1], bool)
    for axis in reversed(range(offsets.shape[-1])):
        after = jnp.where(offsets[..., axis] == 0, after, offsets[..., axis] > 0)
    return ~after
