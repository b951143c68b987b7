"""Implementations V2 and V3 (Alfons 2022, Appendix A.2 and A.3): each query attends to a block of N_p keys of its own.

V2, "patch": at the borders the block is moved so that it stays on the grid. PatchSize_i = min(SpanSize_i, S_i).

  K*, V* [b N N_p h d]    the keys and values of every query's patch (Algorithm 11)
  P [N N_p h d]           E at the offsets of that patch (Algorithm 12); G* [N N_p] likewise
  SpanMask [N N_p]        |offset_i| <= half_i (Algorithm 13): at a border the patch reaches beyond the span

V3, "window": the block is centred on the query, and the grid is padded. SpanSize_i = 2 half_i + 1, at most 2 S_i - 1.

  K*, V* [b N N_p h d]    the keys and values of every query's window on the padded grid (Algorithm 14)
  E^ [N_p h d], G^ [N_p]  E and G at the offsets of a window, the same for every query
  SpanMask [N N_p]        whether the place holds a key (Algorithm 15), and |offset_i| <= half_i
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from posattn_jax.axes import Array, Bool, Float, Int, Query
from posattn_jax.ops import grid, scores, span
from posattn_jax.ops.attention.problem import Problem
from posattn_jax.ops.precision import aligned, plus


def patch_attention(problem: Problem) -> tuple[Query, None]:
    """Outputs [b t h d] (formula 4).

    The offsets of a patch are computed from where it starts. That also works for dimensions of size 1 or 2, and for a
    patch as large as the grid; the paper's steps, which repeat the first, middle and last patch, do not.
    """
    shape, half = problem.grid_shape, _half(problem, "patch")
    size = tuple(min(2 * reach + 1, s) for reach, s in zip(half, shape, strict=True))
    positions = grid.positions(shape)
    starts = np.clip(positions - half, 0, np.subtract(shape, size))  # [t p]

    def at_offsets(values: Array) -> Array:
        """Selects values at the offsets of every query's patch [t s ...] from those at all offsets [*R, ...]."""
        return grid.take_patches(values, starts - positions + np.subtract(shape, 1), size)

    position_scores = jnp.zeros((), problem.dtype)
    if problem.encoding is not None:
        queries, p = problem.position_queries(problem.query), at_offsets(problem.encoding)
        position_scores = problem.product("bthd,tshd->bhts", queries, p)
    log_g_star = None
    if problem.sigma is not None:
        coordinates = grid.relative_coordinates(shape, problem.reference_shape)
        log_g = span.log_modulation(coordinates, problem.sigma, problem.span_mode)
        log_g_star = (jax.vmap(at_offsets) if problem.sigma.ndim > 1 else at_offsets)(log_g)
    offsets = plus((starts - positions)[:, None], grid.positions(size))

    def gather(rows: Array) -> Array:
        return grid.take_patches(rows, starts, size)

    return _attend(problem, gather, offsets, position_scores, log_g_star), None


def window_attention(problem: Problem) -> tuple[Query, None]:
    """Outputs [b t h d] (formula 5)."""
    shape, half = problem.grid_shape, _half(problem, "window")
    size = tuple(2 * reach + 1 for reach in half)
    positions = grid.positions(shape)
    offsets = jnp.asarray(grid.positions(size) - half)[None]  # [1 s p]

    def gather(rows: Array) -> Array:
        padding = [(reach, reach) for reach in half] + [(0, 0)] * (rows.ndim - len(half))
        return grid.take_patches(jnp.pad(rows, padding), positions, size)

    position_scores = jnp.zeros((), problem.dtype)
    if problem.encoding is not None:
        e_hat = grid.centre(problem.encoding, half)
        e_hat = e_hat.reshape(offsets.shape[1], *e_hat.shape[-2:])
        position_scores = problem.product("bthd,shd->bhts", problem.position_queries(problem.query), e_hat)
    log_g_hat = None
    if problem.sigma is not None:
        coordinates = grid.normalise(offsets, shape, problem.reference_shape)
        log_g_hat = span.log_modulation(coordinates, problem.sigma, problem.span_mode)
    keys = jnp.asarray(positions)[:, None] + offsets
    on_grid = jnp.all((keys >= 0) & jnp.less(*aligned(keys, np.array(shape))), -1)
    return _attend(problem, gather, offsets, position_scores, log_g_hat, on_grid), None


def _half(problem: Problem, implementation: str) -> tuple[int, ...]:
    """The half-span that patches are made for; ValueError if none is known while tracing."""
    if problem.static_half is None:
        raise ValueError(f'implementation="{implementation}" needs span_bound where sigma is traced')
    return problem.static_half


def _attend(
    problem: Problem,
    gather: Callable[[Array], Array],
    offsets: Int[Array, "#t s p"],
    position_scores: Float[Array, "..."],
    log_gaussian: Float[Array, "..."] | None,
    on_grid: Bool[Array, "t s"] | None = None,
) -> Query:
    """Outputs [b t h d], where each query attends to the s = N_p keys of its patch.

      terms_ts = (q_t + u) . K*_ts + position_scores_ts         formulas 4 and 5
      outputs_t = sum_s softmax_s(terms_ts under G and the masks) V*_ts

    Args:
      gather: takes every query's patch [t s ...] from an array on the grid [*S, ...].
      offsets: key - query; t may be 1 if they are the same for all queries.
      position_scores: (q + v) . E.
      log_gaussian: [t s], or [h|1 t s] if sigma has heads; t may be 1.
      on_grid: whether a place of a patch holds a key; None if all do.
    """

    def near(rows: Array) -> Array:
        return jax.vmap(gather)(rows.reshape(rows.shape[0], *problem.grid_shape, *rows.shape[2:]))

    terms = position_scores
    if problem.key is not None:
        terms += problem.product("bthd,btshd->bhts", problem.content_queries(problem.query), near(problem.repeated_key))
    masks = [] if on_grid is None else [on_grid]
    if problem.masks_offsets:
        masks.append(scores.shown(position_scores))
    if problem.sigma is not None:  # the patch has a static size; the span in it may be known only at run time
        masks.append(span.inside_span(offsets, problem.half_of(problem.sigma)))
    if problem.is_causal:
        masks.append(grid.not_after(offsets, problem.is_causal))
    if problem.segment_ids is not None:
        masks.append((near(problem.segment_ids) == problem.segment_ids[..., None])[:, None])
    if problem.key_mask is not None:
        masks.append(near(problem.key_mask)[:, None])
    logits = problem.scaling * terms
    if log_gaussian is not None:
        logits = scores.modulate(logits, log_gaussian.astype(problem.dtype), problem.span_mode)
    weights = scores.masked_softmax(logits, masks).astype(problem.value.dtype)
    return problem.product("bhts,btshd->bthd", weights, near(problem.repeated_value)).astype(problem.value.dtype)
