"""Layout "dense": the sums of the reference, looped over rows of queries. No N x N x d tensor, and little memory.

A row is a run of queries along the last dimension. Its positional scores are (q + v) E^T over the offsets the row
meets, one matrix product, then shifted so that column s holds offset s - t. Nothing of a row but its output is kept:
the backward pass computes it again.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from posattn_jax.axes import Array, Float, Query, Weights
from posattn_jax.ops import grid, scores
from posattn_jax.ops.attention.problem import Problem, map_heads

# Queries of a row, and the bytes of scores that one trip of the loop may hold: a trip's scores should stay in a CPU's
# cache, while on an accelerator they must be enough to fill it.
MIN_RUN, MAX_RUN = 8, 64
SCORE_BYTES = {"cpu": 2**22}
ACCELERATOR_SCORE_BYTES = 2**28


def shift(scores: Float[Array, "... t x r"]) -> Float[Array, "... t x s"]:
    """out[t, x, s] = scores[t, x, s - t + T - 1], for R = S + T - 1 offsets: from offsets to keys, without a gather.

    Flattened, that is position t (X R - 1) + x R + s + T - 1: drop T - 1 entries and fold into rows one shorter.
    """
    *batch, t, x, r = scores.shape
    if t == 1:
        return scores
    flat = scores.reshape(*batch, t * x * r)[..., t - 1 : t - 1 + t * (x * r - 1)]
    rows = flat.reshape(*batch, t, x * r - 1)
    rows = jnp.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, 1)])
    return rows.reshape(*batch, t, x, r)[..., : r - t + 1]


def dense_attention(problem: Problem) -> tuple[Query, Weights | None]:
    """Outputs [b t h d], and the weights [b h t s] where asked for."""
    b, n, h, _ = problem.query.shape
    budget = SCORE_BYTES.get(jax.default_backend(), ACCELERATOR_SCORE_BYTES) // (b * n * problem.dtype.itemsize)
    last = problem.grid_shape[-1]
    run = min(last, max(MIN_RUN, min(MAX_RUN, budget)))
    run = -(-last // -(-last // run))  # rows of equal length
    if problem.return_weights or problem.dropout_rate > 0:
        return _attend(problem, run, max(1, budget // (h * run)))
    heads = max(count for count in range(1, h + 1) if h % count == 0 and count <= max(1, budget // run))
    at_once = max(1, budget // (heads * run))
    return map_heads(lambda some: _attend(some, run, at_once)[0], problem, heads), None


def _attend(problem: Problem, run: int, at_once: int) -> tuple[Query, Weights | None]:
    """The same in rows of `run` queries, `at_once` rows in a trip."""
    b, n, h, d = problem.query.shape
    *lead, last = shape = problem.grid_shape
    runs = -(-last // run)
    padding = runs * run - last
    starts = grid.positions((*lead, runs)) * np.array([*(1 for _ in lead), run])  # [rows, p]
    first = np.array([*(size - 1 for size in lead), (runs - 1) * run])

    def offsets_of_row(table: Array, start: Array) -> Array:
        """[*R, ...] -> [X, r, ...]: the entries at the offsets that the row at `start` meets."""
        rest = table.shape[len(shape) :]
        table = lax.dynamic_slice(table, (*(first - start), *(0 for _ in rest)), (*lead, last + run - 1, *rest))
        return table.reshape(n // last, last + run - 1, *rest)

    def padded(table: Array) -> Array:
        ends = [(0, 0)] * len(lead) + [(padding, 0)]
        return jnp.pad(table, ends + [(0, 0)] * (table.ndim - len(ends)))

    tables = {} if problem.relative_encoding is None else {"encoding": padded(problem.relative_encoding)}
    factor, addend = problem.modulation(grid.relative_offsets(shape))
    if problem.sigma is not None:  # [h|1, *R] -> [*R, h|1]
        tables |= {name: padded(jnp.moveaxis(x, 0, -1)) for name, x in (("factor", factor), ("addend", addend))}

    def row(queries: Query, start: Array) -> tuple[Query, Weights | None]:
        """Attention of the queries at `start`, `start` + 1, ... along the last dimension."""
        met = {name: offsets_of_row(table, start) for name, table in tables.items()}
        logits = problem.content_scores(queries)
        if "encoding" in met:
            by_offset = lax.dot_general(  # [h b t (x r)]
                problem.position_queries(queries),
                met["encoding"].reshape(-1, h, d),
                (((3,), (2,)), ((2,), (1,))),
                preferred_element_type=problem.dtype,
            )
            by_offset = by_offset.reshape(h, b, run, n // last, last + run - 1)
            logits += shift(by_offset).reshape(h, b, run, n).swapaxes(0, 1)
        if "factor" in met:

            def by_key(x):
                x = jnp.moveaxis(x, -1, 0)[:, None]
                return shift(jnp.broadcast_to(x, (x.shape[0], run, *x.shape[2:]))).reshape(-1, run, n)

            logits = logits * by_key(met["factor"]) + by_key(met["addend"])
        else:
            logits *= factor
        indices = jnp.sum((start + np.array([[*(0 for _ in lead), i] for i in range(run)])) * grid.strides(shape), -1)
        if problem.is_causal:
            logits += scores.masked_out(scores.causal_mask(indices, jnp.arange(n)), problem.dtype)
        if problem.key_mask is not None:
            logits += scores.masked_out(problem.key_mask[:, None, None], problem.dtype)
        return problem.average(logits, indices)

    queries = jnp.pad(problem.query.reshape(b, n // last, last, h, d), [(0, 0)] * 2 + [(0, padding)] + [(0, 0)] * 2)
    queries = jnp.moveaxis(queries.reshape(b, len(starts), run, h, d), 1, 0)
    outputs, weights = map_rows(row, queries, jnp.asarray(starts), at_once)
    outputs = jnp.moveaxis(outputs, 0, 1).reshape(b, n // last, runs * run, h, d)[:, :, :last].reshape(b, n, h, d)
    if weights is not None:
        weights = jnp.moveaxis(weights, 0, 2).reshape(b, h, n // last, runs * run, n)[:, :, :, :last]
        weights = weights.reshape(b, h, n, n)
    return outputs, weights


def map_rows(row: Callable, queries: Array, starts: Array, at_once: int):
    """Maps `row` over the rows, `at_once` in a trip; recomputed backward unless all fit at once."""
    if at_once >= len(starts):
        return jax.vmap(row)(queries, starts)
    recomputed = jax.checkpoint(row, prevent_cse=False)
    return lax.map(lambda xs: recomputed(*xs), (queries, starts), batch_size=at_once if at_once > 1 else None)
