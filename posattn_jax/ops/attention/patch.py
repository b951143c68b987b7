"""Layout V2 (Alfons 2022, Appendix A.2): each query's patch of keys, moved at the borders so that it stays on the grid.

With N_p = prod(PatchSize) and PatchSize_i = min(SpanSize_i, S_i):

  K*, V* [b N N_p h d]    the keys and values of every query's patch (Algorithm 11)
  P [N N_p h d]           E at the offsets of that patch (Algorithm 12), and G* [N N_p] alike
  SpanMask [N N_p]        |offset_i| <= half_i (Algorithm 13): at a border the patch reaches beyond the span
"""

import jax
import jax.numpy as jnp
import numpy as np

from posattn_jax.axes import Array, Query
from posattn_jax.ops import grid, span
from posattn_jax.ops.attention.patches import attend_patches
from posattn_jax.ops.attention.problem import Problem


def patch_attention(problem: Problem) -> tuple[Query, None]:
    """Outputs [b t h d] (formula 4).

    A patch's start gives its offsets in any dimension, of size 1 or 2 and where the patch is the whole grid too, where
    the paper's steps of repeating the first, middle and last patch do not.
    """
    problem.check_local("patch")
    shape, half = problem.grid_shape, problem.local_half("patch")
    size = tuple(min(2 * reach + 1, s) for reach, s in zip(half, shape, strict=True))
    positions = grid.positions(shape)
    starts = np.clip(positions - half, 0, np.subtract(shape, size))  # [t p]

    def at_offsets(values: Array) -> Array:
        """From all relative offsets [*R, ...] to those of every query's patch [t s ...]."""
        return grid.take_patches(values, starts - positions + np.subtract(shape, 1), size)

    position_scores = 0.0
    if problem.encoding is not None:
        queries, p = problem.position_queries(problem.query), at_offsets(problem.encoding)
        position_scores = jnp.einsum("bthd,tshd->bhts", queries, p, preferred_element_type=problem.dtype)
    log_g_star = None
    if problem.sigma is not None:
        log_g = span.log_gaussian(grid.relative_coordinates(shape, problem.reference_shape), problem.sigma)
        log_g_star = (jax.vmap(at_offsets) if problem.sigma.ndim > 1 else at_offsets)(log_g)
    offsets = jnp.asarray(starts - positions)[:, None] + grid.positions(size)
    return attend_patches(
        problem, lambda rows: grid.take_patches(rows, starts, size), offsets, position_scores, log_g_star
    ), None
