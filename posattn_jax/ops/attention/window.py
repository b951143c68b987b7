"""Layout V3 (Alfons 2022, Appendix A.3): each query's window of keys, centred on it and padded beyond the borders.

With N_p = prod(SpanSize) and SpanSize_i = 2 half_i + 1, at most 2 S_i - 1:

  K*, V* [b N N_p h d]    the keys and values of every query's window, of the padded grid (Algorithm 14)
  E^ [N_p h d], G^ [N_p]  E and G at the offsets of a window, the same for every query
  SpanMask [N N_p]        the places that hold a key (Algorithm 15), where also |offset_i| <= half_i
"""

import jax.numpy as jnp
import numpy as np

from posattn_jax.axes import Array, Query
from posattn_jax.ops import grid, span
from posattn_jax.ops.attention.patches import attend_patches
from posattn_jax.ops.attention.problem import Problem


def window_attention(problem: Problem) -> tuple[Query, None]:
    """Outputs [b t h d] (formula 5)."""
    problem.check_local("window")
    shape, half = problem.grid_shape, problem.local_half("window")
    size = tuple(2 * reach + 1 for reach in half)
    positions = grid.positions(shape)
    offsets = jnp.asarray(grid.positions(size) - half)[None]  # [1 s p]

    def gather(rows: Array) -> Array:
        padding = [(reach, reach) for reach in half] + [(0, 0)] * (rows.ndim - len(half))
        return grid.take_patches(jnp.pad(rows, padding), positions, size)

    position_scores = 0.0
    if problem.encoding is not None:
        centre = tuple(slice(s - 1 - reach, s + reach) for s, reach in zip(shape, half, strict=True))
        e_hat = problem.encoding[centre]
        e_hat = e_hat.reshape(offsets.shape[1], *e_hat.shape[-2:])
        queries = problem.position_queries(problem.query)
        position_scores = jnp.einsum("bthd,shd->bhts", queries, e_hat, preferred_element_type=problem.dtype)
    log_g_hat = None
    if problem.sigma is not None:
        coordinates = grid.normalise(offsets, shape, problem.reference_shape)
        log_g_hat = span.log_gaussian(coordinates, problem.sigma)
    keys = jnp.asarray(positions)[:, None] + offsets
    on_grid = jnp.all((keys >= 0) & (keys < np.array(shape)), -1)
    return attend_patches(problem, gather, offsets, position_scores, log_g_hat, on_grid), None
