"""What the layouts of patches share: attention of each query to a block of keys of its own."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from posattn_jax.axes import Array, Bool, Float, Int, Query, Weights
from posattn_jax.ops import grid, span
from posattn_jax.ops.attention.problem import Problem


def attend_patches(
    problem: Problem,
    gather: Callable[[Array], Array],
    offsets: Int[Array, "#t s p"],
    position_scores: Weights | float,
    log_gaussian: Float[Array, "..."] | None,
    on_grid: Bool[Array, "t s"] | None = None,
) -> Query:
    """Outputs [b t h d] of queries that each attend to the s = N_p keys of a patch.

      terms_ts = (q_t + u) . K*_ts + position_scores_ts         formulas 4 and 5
      outputs_t = sum_s softmax_s(terms_ts under G and the masks) V*_ts

    Args:
      gather: from what lies on the grid [*S, ...] to every query's patch of it [t s ...].
      offsets: key - query; a single query's where they are the same for all.
      position_scores: (q + v) . E.
      log_gaussian: [t s], or [h|1 t s] as sigma has heads; t may be 1.
      on_grid: whether a patch's place holds a key; None where all do.
    """

    def near(rows: Array) -> Array:
        return jax.vmap(gather)(rows.reshape(len(rows), *problem.grid_shape, *rows.shape[2:]))

    terms = position_scores
    if problem.key is not None:
        queries, keys = problem.content_queries(problem.query), near(problem.key)
        terms += jnp.einsum("bthd,btshd->bhts", queries, keys, preferred_element_type=problem.dtype)
    masks = [] if on_grid is None else [on_grid]
    if problem.sigma is not None:  # the static size bounds the span; of what it holds, the box is known only now
        masks.append(span.inside_span(offsets, problem.half))
    if problem.is_causal:  # row-major indices are linear in the coordinates
        masks.append(jnp.sum(offsets * grid.strides(problem.grid_shape), -1) <= 0)
    if problem.key_mask is not None:
        masks.append(near(problem.key_mask)[:, None])
    weights = problem.weigh(terms, log_gaussian, masks).astype(problem.value.dtype)
    outputs = jnp.einsum("bhts,btshd->bthd", weights, near(problem.value), preferred_element_type=problem.dtype)
    return outputs.astype(problem.value.dtype)
