"""Attention by "reference", V1 (Alfons 2022, Appendix A.1): every tensor has axes [N, N]. The others are tested by it.

Only this implementation supports problems without values, class tokens (which lie on no grid), a `limit`, and queries
on a grid of their own.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from posattn_jax.axes import Query, Value, Weights
from posattn_jax.ops import grid, scores, span
from posattn_jax.ops.attention.problem import Problem
from posattn_jax.ops.precision import plus, same_dtype


def reference_attention(problem: Problem) -> tuple[Any, Weights]:
    """Outputs [b t h d], or None without values, and weights [b h t s]."""
    weights = attention_weights(problem)
    return None if problem.value is None else average(weights, problem.repeated_value), weights


def average(weights: Weights, value: Value) -> Query:
    """sum_s alpha_ts value_s, [b t h d]."""
    outputs = jnp.einsum("bhts,bshd->bthd", *same_dtype(weights, value), preferred_element_type=weights.dtype)
    return outputs.astype(value.dtype)


def attention_weights(problem: Problem) -> Weights:
    """alpha_ts = softmax_s(logits_ts), [b h t s] in float32 or better; 0 for a query that may attend to no key.

    The logits are those of `relative_attention`, with scale * A_ts in place of the bias, where A is `pair_scores`.
    """
    shape, cls, query, dtype = problem.grid_shape, problem.num_class_tokens, problem.query, problem.dtype
    (b, n, h, _), num_keys = query.shape, cls + grid.num_positions(shape)
    grids = shape, problem.query_grid_shape

    def of_all(pairs, fill):
        """Adds the pairs with class tokens to [... t s] of the grid, with the value `fill`."""
        return jnp.pad(pairs, [(0, 0)] * (pairs.ndim - 2) + [(cls, 0)] * 2, constant_values=fill)

    terms = jnp.zeros((b, h, n, num_keys), dtype) if problem.pair_scores is None else problem.pair_scores.astype(dtype)
    if problem.key is not None:
        terms += problem.product("bthd,bshd->bhts", problem.content_queries(query), problem.repeated_key)
    if problem.relative_encoding is not None:
        positional = query[:, cls:] if problem.position_bias is None else plus(query[:, cls:], problem.position_bias)
        p = grid.toeplitz(problem.relative_encoding, *grids)
        terms += of_all(problem.product("bthd,tshd->bhts", positional, p), 0)
    logits, masks = terms * problem.scaling, []
    offsets = grid.pair_offsets(*grids)
    if problem.relative_bias is not None:
        logits = plus(logits, of_all(jnp.moveaxis(grid.toeplitz(problem.relative_bias, *grids), -1, 0), 0))
    if problem.sigma is not None:
        coordinates = grid.normalise(offsets, shape, problem.reference_shape)
        log_g = span.log_modulation(coordinates, jnp.atleast_2d(problem.sigma), problem.span_mode)  # [h|1 t s]
        logits = scores.modulate(logits, of_all(log_g, 0).astype(dtype), problem.span_mode)
        masks.append(of_all(span.inside_span(jnp.asarray(offsets), problem.half_of(problem.sigma)), True))
    limit = problem.limit
    if limit is not None and any(reach < size - 1 for reach, size in zip(limit, shape, strict=True)):
        masks.append(of_all(jnp.asarray((np.abs(offsets) <= np.array(limit)).all(-1)), True))
    if problem.is_causal is True:
        masks.append(jnp.arange(n)[None] <= jnp.arange(n)[:, None])  # row-major order: keys s <= t
    elif problem.is_causal:
        not_after = of_all(grid.not_after(jnp.asarray(offsets), problem.is_causal), True)
        masks.append(not_after.at[:cls, cls:].set(False))  # class tokens come before the grid
    if problem.segment_ids is not None:
        masks.append((problem.segment_ids[:, :, None] == problem.segment_ids[:, None])[:, None])
    if problem.relative_bias is not None and problem.masks_offsets:
        shown = grid.toeplitz(scores.shown(problem.relative_bias), *grids)
        masks.append(of_all(jnp.moveaxis(shown, -1, 0), True))
    if problem.pair_scores is not None:
        masks.append(scores.shown(problem.pair_scores))
    if problem.mask is not None:
        masks.append(problem.mask)
    if problem.key_mask is not None:
        masks.append(problem.key_mask[:, None, None, :])
    weights = scores.masked_softmax(logits, masks)
    if problem.dropout_rng is not None and problem.dropout_rate > 0:
        weights = scores.dropout(weights, jnp.arange(n), problem.dropout_rate, problem.dropout_rng)
    return weights
