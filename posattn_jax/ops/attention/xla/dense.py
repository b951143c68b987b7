"""Attention by "dense": the sums of "reference", in a loop over rows of queries. No N x N x d tensor, little memory.

A row is a run of queries along the first dimension. Its positional scores are one matrix product, (q + v) E^T over the
offsets that the row meets; then they are shifted so that column s holds offset s - t. Only the outputs and two
statistics of the softmax are kept for a row: the backward pass computes the weights again.

Axes are in the order in which the products read them, heads first and features before positions: queries [h b i t d] of
i rows that are computed at once, keys [h b d s], scores [h b i t s], scores by offset [h b i t r].
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from posattn_jax.ops import grid, scores, span
from posattn_jax.ops.attention.problem import Problem
from posattn_jax.ops.attention.xla.loop import Loop, axes_varied_over, scan, varying
from posattn_jax.ops.attention.xla.rows import choose_rows
from posattn_jax.ops.precision import einsum, plus, same_ndim, times


class RowLoop(Loop):
    """The loop over rows of queries, forward and backward; `choose_rows` decides how much it computes at once."""

    def __init__(self, problem: Problem):
        self.rows, heads = choose_rows(problem)
        super().__init__(problem, heads)

    def cost(self, sigma):
        return float(grid.num_positions(self.rows.query_shape)) * self.rows.num_positions

    def prepared(self, arrays):
        """The arrays in the form that the steps read: rows of queries, features before keys, padded tables."""
        rows = self.rows
        ready = {name: rows.queries(x) for name, x in self.of_queries(arrays).items()}
        for name in ("key", "value"):
            if name in arrays:
                b, h, *_, d = arrays[name].shape
                ready[name] = arrays[name].reshape(b, h, self.rows.num_positions, d).transpose(1, 0, 3, 2)
        if "encoding" in arrays:
            ready["encoding"] = rows.pad(jnp.moveaxis(arrays["encoding"], (-2, -1), (0, 1)))  # [h d *R]
        return ready

    def tables(self, arrays):
        """The factor and addend that turn terms into logits, by offset: [h|1 *R]."""
        problem, offsets = self.problem, grid.relative_offsets(self.problem.grid_shape)
        tables = {}
        if "sigma" in arrays:
            inside = span.inside_span(offsets, problem.half_of(arrays["sigma"]))
            coordinates = grid.normalise(offsets, problem.grid_shape, problem.reference_shape)
            log_gaussian = span.log_modulation(coordinates, arrays["sigma"], problem.span_mode).astype(self.dtype)
            tables["addend"] = scores.masked_out(inside, self.dtype)
            if self.multiply:
                tables["factor"] = problem.scaling * jnp.exp(log_gaussian)
            else:
                tables["addend"] += log_gaussian
        if problem.is_causal:
            not_after = grid.not_after(offsets, problem.is_causal)
            tables["addend"] = tables.get("addend", 0.0) + scores.masked_out(not_after, self.dtype)[None]
        tables = {name: self.rows.pad(table) for name, table in tables.items()}
        if problem.masks_offsets:
            shown = jnp.moveaxis(scores.shown(arrays["encoding"][..., -1]), -1, 0)
            tables["addend"] += self.rows.pad(scores.masked_out(shown, self.dtype))
        return tables

    def hiding(self, arrays):
        """The arrays that mask keys for single queries, cut into rows like the queries."""
        names = ("segments", "pair_addend")
        return {name: self.rows.queries(arrays[name]) for name in names if name in arrays}

    def modulation(self, arrays, tables, starts, hiding):
        """The factor and addend of the rows at `starts`: numbers, or arrays that broadcast against [h b i t s]."""
        factor = self.by_key(tables["factor"], starts) if "factor" in tables else self.problem.scaling
        addend = self.by_key(tables["addend"], starts) if "addend" in tables else 0.0
        if "key_addend" in arrays:
            hidden = arrays["key_addend"]
            addend += hidden.reshape(1, hidden.shape[0], 1, 1, self.rows.num_positions)
        if "segments" in hiding:
            of_keys = arrays["segments"]
            of_keys = of_keys.reshape(1, of_keys.shape[0], 1, 1, self.rows.num_positions)
            addend += scores.masked_out(hiding["segments"] == of_keys, self.dtype)
        if "pair_addend" in hiding:
            addend += hiding["pair_addend"]
        if "block" in arrays:
            low, high = self.key_range(arrays)
            where = grid.positions(self.rows.grid_shape)
            low, high = (same_ndim(where, edge)[1] for edge in (low, high))
            inside = jnp.all((where >= low) & (where < high), -1).reshape(1, 1, 1, 1, -1)
            addend += scores.masked_out(inside, self.dtype)
        return factor, addend

    def by_key(self, table, starts):
        """The entries of a table by offset, between the queries of the rows and every key: [h|m 1 i t s]."""
        return self.rows.toeplitz(self.rows.bands(table, starts)[:, None])

    def logits(self, queries, ready, encoding, factor, addend):
        """The logits [h b i t s].

        Each term is modulated before the terms are added. Otherwise the CPU compiler would repeat their sum in every
        operation that reads the logits.
        """
        logits = addend
        if encoding is not None:
            by_offset = self.problem.product("hbitd,hdir->hbitr", queries["position_query"], encoding)
            logits += factor * self.rows.shift(by_offset)
        if "key" in ready:
            logits += factor * self.problem.product("hbitd,hbds->hbits", queries["content_query"], ready["key"])
        if "pair_scores" in queries:
            pairs = queries["pair_scores"]
            logits += jnp.where(scores.shown(pairs), times(factor, pairs), scores.MASKED)
        return logits

    def dropped(self, weights, starts, arrays):
        """Dropout of weights [h b i t s]; it is linear, and its own transpose."""
        if "dropout_rng" not in arrays:
            return weights
        h, b, i, t, s = weights.shape
        strides = grid.strides(self.problem.grid_shape)
        queries = plus((starts @ strides)[:, None], np.arange(t) * strides[0])
        flat = weights.swapaxes(0, 1).reshape(b, h, i * t, s)
        flat = scores.dropout(flat, queries.reshape(-1), self.problem.dropout_rate, arrays["dropout_rng"])
        return flat.reshape(b, h, i, t, s).swapaxes(0, 1)

    def met_encoding(self, ready, starts):
        """The encodings at the offsets that the rows meet: [h d i r]."""
        return self.rows.bands(ready["encoding"], starts) if "encoding" in ready else None

    def some_forward(self, arrays):
        ready, tables = self.prepared(arrays), self.tables(arrays)
        queries = self.of_queries(ready)
        value = ready["value"]

        def step(_, xs):
            starts, queries, hiding = xs
            encoding = self.met_encoding(ready, starts)
            numerators, largest, total = scores.exponentials(
                self.logits(queries, ready, encoding, *self.modulation(arrays, tables, starts, hiding))
            )
            numerators = self.dropped(numerators, starts, arrays)
            outputs = self.problem.product("hbits,hbds->hbitd", numerators.astype(value.dtype), value)
            weights = numerators / total if self.problem.return_weights else None
            return None, (outputs / total, weights, jnp.concatenate([largest, 1 / total], -1))

        starts = plus(self.rows.starts, self.first_query(arrays))
        outputs, weights, statistics = scan(step, None, (starts, queries, self.hiding(arrays)))[1]
        if weights is not None:
            b, h, *_ = arrays["value"].shape
            weights = self.rows.grid(weights).reshape(b, h, self.rows.num_positions, self.rows.num_positions)
        return self.rows.grid(outputs), weights, self.rows.grid(statistics)

    def some_backward(self, arrays, outputs, statistics, d_outputs, d_weights):
        """The cotangents of `arrays`, with A the weights, which are computed again, and L the logits:

        dV_s = sum_t A_ts dO_t        dL_ts = A_ts (dA_ts - sum_s A_ts dA_ts)        dA_ts = dO_t . V_s
        """
        rows = self.rows
        (ready, unprepare), tables = jax.vjp(self.prepared, arrays), self.tables(arrays)
        queries = self.of_queries(ready)
        if "sigma" in arrays:
            x = grid.relative_coordinates(self.problem.grid_shape, self.problem.reference_shape)
            products = jnp.stack([x[..., i] * x[..., j] for i, j in span.pairs(arrays["sigma"])])
            products = rows.pad(products.astype(self.dtype))  # [m *R]

        def step(carry, xs):
            starts, queries, hiding, statistics, d_outputs, d_kept = xs
            largest, inverse_total = statistics[..., :1], statistics[..., 1:]
            encoding = self.met_encoding(ready, starts)
            factor, addend = self.modulation(arrays, tables, starts, hiding)
            logits = self.logits(queries, ready, encoding, factor, addend)
            weights = jnp.exp(logits - largest) * inverse_total
            d_weights = self.problem.product("hbitd,hbds->hbits", d_outputs, ready["value"])
            if d_kept is not None:
                d_weights += d_kept
            d_weights = self.dropped(d_weights, starts, arrays)
            d_logits = weights * (d_weights - (weights * d_weights).sum(-1, keepdims=True))
            d_terms = d_logits * factor
            added = {"value": _over_queries(d_outputs, self.dropped(weights, starts, arrays))}
            d_queries = {"pair_scores": d_terms} if "pair_scores" in queries else {}
            if "key" in ready:
                d_queries["content_query"] = einsum("hbits,hbds->hbitd", d_terms, ready["key"])
                added["key"] = _over_queries(queries["content_query"], d_terms)
            carry = carry | {name: carry[name] + added[name] for name in added}
            if encoding is not None:
                d_by_offset = rows.unshift(d_terms)
                d_queries["position_query"] = einsum("hbitr,hdir->hbitd", d_by_offset, encoding)
                d_encoding = _over_batch(queries["position_query"], d_by_offset)
                carry["encoding"] = rows.add_bands(carry["encoding"], d_encoding, starts)
            if "sigma" in arrays:
                d_log = d_logits * logits if self.multiply else d_logits
                d_log = _over_examples(d_log, each_head=len(arrays["sigma"]) > 1)
                carry["precision"] -= 0.5 * einsum("hits,mits->hm", d_log, self.by_key(products, starts)[:, 0])
            return carry, d_queries

        summed = [name for name in ("key", "value", "encoding") if name in ready]
        carry = {name: jnp.zeros(ready[name].shape, self.dtype) for name in summed}
        if "sigma" in arrays:
            carry["precision"] = jnp.zeros((len(arrays["sigma"]), len(products)), self.dtype)
        if d_weights is not None:
            d_weights = rows.queries(d_weights.reshape(*d_weights.shape[:2], *rows.grid_shape, rows.num_positions))
        d_outputs = rows.queries(d_outputs.astype(self.dtype))
        starts = plus(rows.starts, self.first_query(arrays))
        xs = (starts, queries, self.hiding(arrays), rows.queries(statistics), d_outputs, d_weights)
        carry, d_queries = scan(step, varying(carry, axes_varied_over(arrays["value"])), xs)
        d_ready = carry | d_queries
        (cotangents,) = unprepare({name: d_ready[name].astype(x.dtype) for name, x in ready.items()})
        cotangents = {name: cotangents[name] for name in arrays if name in ready}
        if "sigma" in arrays:
            _, to_sigma = jax.vjp(span.precision, arrays["sigma"])
            d_precision = d_ready["precision"] * span.exponent(self.problem.span_mode)
            (cotangents["sigma"],) = to_sigma(d_precision.astype(arrays["sigma"].dtype))
        return cotangents


def _over_queries(features, x):
    """sum_it features[h b i t d] x[h b i t s]: [h b d s]."""
    return einsum("hbidt,hbits->hbds", features.swapaxes(-1, -2), x)


def _over_batch(features, x):
    """sum_bt features[h b i t d] x[h b i t r]: [h d i r]. Not an einsum, for which the compiler would transpose x."""
    h, b, i, t, d = features.shape
    features = features.transpose(0, 2, 4, 1, 3).reshape(h, i, d, b * t)
    x = x.swapaxes(1, 2).reshape(h, i, b * t, x.shape[-1])
    return lax.dot_general(features, x, (((3,), (2,)), ((0, 1), (0, 1)))).swapaxes(1, 2)


def _over_examples(x, each_head):
    """sum_b x[h b ...], or sum_hb as [1 ...], by a product with ones: on a CPU it is several times as fast as a sum.

    Heads and examples stay separate axes. If they were merged, a batch that is cut over devices would be gathered.
    """
    h, b, *rest = x.shape
    ones = jnp.ones((h, b), x.dtype)
    x = jnp.einsum("hb,hbx->hx" if each_head else "hb,hbx->x", ones, x.reshape(h, b, math.prod(rest)))
    return x.reshape(h if each_head else 1, *rest)
