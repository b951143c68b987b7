"""Layout V1 (Alfons 2022, Appendix A.1): every tensor laid out [N, N]. Plain, large, and the oracle of the others."""

import jax.numpy as jnp
import numpy as np

from posattn_jax.axes import Array, Bool, Float, Query, Shape, Sigma, Weights
from posattn_jax.ops import grid, span
from posattn_jax.ops.attention.patches import take_patches
from posattn_jax.ops.attention.problem import Problem


def unfold(values: Array, grid_shape: Shape) -> Array:
    """P[t, s] = values[s - t] (Algorithm 9): [*R, ...] -> [N, N, ...].

    The patch of query t starts at S - 1 - t: the query axes are truly reversed, where the paper's step 2 as printed
    would leave the range.
    """
    shape = grid.check_grid(grid_shape)
    return take_patches(values, np.asarray(shape) - 1 - grid.positions(shape), shape)


def span_by_pair(
    sigma: Sigma, threshold: float, grid_shape: Shape, reference_shape: Shape | None = None
) -> tuple[Float[Array, "... t s"], Bool[Array, "... t s"]]:
    """ln G, and whether the key is inside the span, for every pair: [t s], or [h t s] with a span a head."""
    positions = grid.positions(grid_shape)
    log_g = span.log_gaussian(grid.relative_coordinates(grid_shape, reference_shape), sigma)
    if sigma.ndim > 1:  # one Gaussian a head: its axis goes last to be carried along, then first again
        log_g_star = jnp.moveaxis(unfold(jnp.moveaxis(log_g, 0, -1), grid_shape), -1, 0)
    else:
        log_g_star = unfold(log_g, grid_shape)
    half = span.half_span(sigma, threshold, grid_shape, reference_shape)
    return log_g_star, span.inside_span(jnp.asarray(positions) - positions[:, None], half)


def reference_attention(problem: Problem) -> tuple[Query, Weights | None]:
    """Outputs [b t h d], and the weights [b h t s] where asked for."""
    shape = problem.grid_shape
    terms = problem.content_scores(problem.query)
    if problem.encoding is not None:
        p = unfold(problem.encoding, shape)
        queries = problem.position_queries(problem.query)
        terms += jnp.einsum("bthd,tshd->bhts", queries, p, preferred_element_type=problem.dtype)
    log_g_star = span_mask = None
    if problem.sigma is not None:
        log_g_star, span_mask = span_by_pair(problem.sigma, problem.threshold, shape, problem.reference_shape)
    return problem.attend(terms, jnp.arange(grid.num_positions(shape)), log_g_star, span_mask)
