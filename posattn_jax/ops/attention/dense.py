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
from posattn_jax.ops import grid, span
from posattn_jax.ops.attention.problem import Problem

# The longest run of queries in a row, and the bytes of scores that one trip of the loop may hold: a trip's scores
# should stay in a CPU's cache, while on an accelerator they must be enough to fill it.
MAX_RUN = 64
SCORE_BYTES = {"cpu": 2**20}
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
    b, n, h, d = problem.query.shape
    *lead, last = shape = problem.grid_shape
    run = min(last, MAX_RUN)
    runs = -(-last // run)
    padding = runs * run - last
    key_positions = grid.positions(shape)
    starts = grid.positions((*lead, runs)) * np.array([*(1 for _ in lead), run])  # [rows, p]
    if problem.relative_encoding is not None:
        encoding = jnp.pad(problem.relative_encoding, [(0, 0)] * len(lead) + [(padding, 0), (0, 0), (0, 0)])
        first = np.array([*(size - 1 for size in lead), (runs - 1) * run])
    if problem.sigma is not None:
        half = problem.half

    def row(queries: Query, start: Array) -> tuple[Query, Weights | None]:
        """Attention of the queries at `start`, `start` + 1, ... along the last dimension."""
        query_positions = start + np.array([[*(0 for _ in lead), i] for i in range(run)])
        terms = problem.content_scores(queries)
        if problem.relative_encoding is not None:
            e = lax.dynamic_slice(encoding, (*(first - start), 0, 0), (*lead, last + run - 1, h, d))
            e = e.reshape(n // last, last + run - 1, h, d)
            by_offset = jnp.einsum(
                "bthd,xrhd->bhtxr", problem.position_queries(queries), e, preferred_element_type=problem.dtype
            )
            terms += shift(by_offset).reshape(b, h, run, n)
        log_gaussian = inside = None
        if problem.sigma is not None:
            offsets = key_positions - query_positions[:, None]
            coordinates = grid.normalise(offsets, shape, problem.reference_shape)
            log_gaussian = span.log_gaussian(coordinates, problem.sigma)
            inside = span.inside_span(offsets, half)
        query_indices = jnp.sum(query_positions * grid.strides(shape), -1)
        return problem.attend(terms, query_indices, log_gaussian, inside)

    queries = jnp.pad(problem.query.reshape(b, n // last, last, h, d), [(0, 0)] * 2 + [(0, padding)] + [(0, 0)] * 2)
    queries = jnp.moveaxis(queries.reshape(b, len(starts), run, h, d), 1, 0)
    score_bytes = b * h * run * n * problem.dtype.itemsize
    outputs, weights = map_rows(row, queries, jnp.asarray(starts), score_bytes)
    outputs = jnp.moveaxis(outputs, 0, 1).reshape(b, n // last, runs * run, h, d)[:, :, :last].reshape(b, n, h, d)
    if weights is not None:
        weights = jnp.moveaxis(weights, 0, 2).reshape(b, h, n // last, runs * run, n)[:, :, :, :last]
        weights = weights.reshape(b, h, n, n)
    return outputs, weights


def map_rows(row: Callable, queries: Array, starts: Array, score_bytes: int):
    """Maps `row` over the rows, as many at once as the budget holds; recomputed backward unless all fit at once."""
    budget = SCORE_BYTES.get(jax.default_backend(), ACCELERATOR_SCORE_BYTES)
    at_once = max(1, budget // score_bytes)
    if at_once >= len(starts):
        return jax.vmap(row)(queries, starts)
    recomputed = jax.checkpoint(row, prevent_cse=False)
    return lax.map(lambda xs: recomputed(*xs), (queries, starts), batch_size=at_once if at_once > 1 else None)
