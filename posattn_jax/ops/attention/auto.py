"""Which layout is used where none is asked for."""

import functools
import math
from typing import Any

import jax.numpy as jnp
from jax import lax

from posattn_jax.axes import Array, Query, Shape, Weights
from posattn_jax.ops import grid
from posattn_jax.ops.attention.dense import dense_attention
from posattn_jax.ops.attention.problem import Problem
from posattn_jax.ops.attention.tiled import tiled_attention
from posattn_jax.ops.attention.tiles import Tiling, tilings

# The time of a pair that "tiled" computes, in those of a pair of "dense", by the number of dimensions: between the
# forward pass (2-D: .7) and forward and backward (2-D: .36). Source: `benchmarks/results/cpu/attention/`, made by
# `python -m posattn_jax.benchmarks.attention --backward` on 2 CPU cores; 3-D is assumed to be as 2-D.
PAIR_COST = {1: 1.0, 2: 0.55, 3: 0.55}
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


def tiled_pays(problem: Problem, reach: Any) -> Array | bool:
    """Whether the pairs that "tiled" computes for a half-span of `reach` take less time than all pairs in "dense"."""
    b, _, h, _ = problem.query.shape
    choices = tilings(problem.grid_shape, b, h, problem.dtype.itemsize, problem.static_half)
    return _cheapest(choices, reach) * PAIR_COST[len(problem.grid_shape)] < grid.num_positions(problem.grid_shape) ** 2


def _cheapest(choices: list[tuple[Tiling, int]], reach: Any):
    return functools.reduce(jnp.minimum, [tiling.cost(reach) for tiling, _ in choices])


def score_share(
    grid_shape: Shape,
    half: Shape | None,
    *,
    span_bound: Shape | None = None,
    batch_size: int = 1,
    num_heads: int = 1,
    implementation: str = "auto",
) -> float:
    """The scores that a layout computes, as a share of all N x N: more than 1 where it computes some in vain.

    Args:
      grid_shape: S.
      half: the half-span in positions; None without a span.
      span_bound: the static bound that the layout was given.
      batch_size: b; like the heads it decides how many tiles are computed at once, and so where they are padded.
      num_heads: h.
      implementation: the layout; what "auto" chooses follows from the rest.
    """
    n = grid.num_positions(grid_shape)
    if implementation in ("dense", "reference") or half is None:
        return 1.0
    reach = half if span_bound is None else span_bound
    if implementation == "patch":
        return math.prod(min(2 * h + 1, s) for h, s in zip(reach, grid_shape, strict=True)) / n
    if implementation == "window":
        return math.prod(2 * h + 1 for h in reach) / n
    choices = tilings(tuple(grid_shape), batch_size, num_heads, 4, span_bound)
    best = min((tiling for tiling, _ in choices), key=lambda tiling: tiling.cost(reach))
    pays = n >= LEAST_POSITIONS and best.cost(reach) * PAIR_COST[len(grid_shape)] < n * n
    return best.pairs(reach) / (n * n) if pays or implementation == "tiled" else 1.0
