"""Which layout is used where none is asked for."""

import jax
import jax.numpy as jnp
from jax import lax

from posattn_jax.axes import Query, Weights
from posattn_jax.ops import grid
from posattn_jax.ops.attention.dense import dense_attention
from posattn_jax.ops.attention.problem import Problem
from posattn_jax.ops.attention.tiled import tiled_attention
from posattn_jax.ops.attention.tiles import Tiling, tilings

# The time of a pair that "tiled" computes, in those of a pair of "dense", by the number of dimensions. Source: README,
# "A learned span that pays"; measured by `python -m posattn_jax.benchmarks.attention --backward` on 2 CPU cores.
PAIR_COST = {1: 1.2, 2: 0.75, 3: 0.75}
# On grids of fewer positions "dense" has nothing to lose.
LEAST_POSITIONS = 200


def auto_attention(problem: Problem) -> tuple[Query, Weights | None]:
    """The layout that is expected to be the fastest; "dense" for what no other can do.

    Where the span is known only at run time, so is the choice: one program holds both layouts.
    """
    n = grid.num_positions(problem.grid_shape)
    if problem.sigma is None or problem.return_weights or problem.dropout_rate > 0 or n < LEAST_POSITIONS:
        return dense_attention(problem)
    if problem.static_half is not None:
        return tiled_attention(problem) if tiled_pays(problem, problem.static_half) else dense_attention(problem)
    half = problem.half.reshape(-1, len(problem.grid_shape))
    reach = jnp.where(jnp.isnan(half), 0, half).max(0).astype(jnp.int32)
    outputs = lax.cond(
        tiled_pays(problem, reach), lambda: tiled_attention(problem)[0], lambda: dense_attention(problem)[0]
    )
    return outputs, None


def tiled_pays(problem: Problem, reach) -> jax.Array | bool:
    """Whether the pairs that "tiled" computes for a half-span of `reach` take less time than all pairs in "dense"."""
    n = grid.num_positions(problem.grid_shape)
    return _cheapest(problem, reach, Tiling.cost) * PAIR_COST[len(problem.grid_shape)] < n * n


def _cheapest(problem: Problem, reach, measure):
    b, _, h, _ = problem.query.shape
    choices = tilings(problem.grid_shape, b, h, problem.dtype.itemsize, problem.static_half)
    costs = [measure(tiling, reach) for tiling, _ in choices]
    return costs[0] if len(costs) == 1 else jnp.stack(costs).min()
