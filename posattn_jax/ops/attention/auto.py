"""Which layout is used where none is asked for.

"native" is where it can be: see `benchmarks/results/cpu/rivals/`. "fused" is where it has been tried on this device and
was right and the fastest: see `fused/trial.py`.
"""

import math

import jax

from posattn_jax.axes import Query, Shape, Weights
from posattn_jax.ops import grid
from posattn_jax.ops.attention import factorised
from posattn_jax.ops.attention.dense import RowLoop
from posattn_jax.ops.attention.fused import plain, trial
from posattn_jax.ops.attention.fused.layout import fused_attention
from posattn_jax.ops.attention.loop import Loop, attend
from posattn_jax.ops.attention.native import layout as native
from posattn_jax.ops.attention.problem import Problem
from posattn_jax.ops.attention.tiled import window_loops
from posattn_jax.ops.attention.tiles import tilings

# On grids of fewer positions "dense" has nothing to lose.
LEAST_POSITIONS = 200
# The time of a pair that "native" computes, in those of a pair of "dense": measured on grids whose last size is 4 or 5.
NATIVE_PAIR_COST = 0.4


def auto_attention(problem: Problem) -> tuple[Query, Weights | None]:
    """The layout that is expected to be the fastest: what the platform has for contents alone, "native" on a CPU,
    "fused" where a trial has found it so, or as `portable_loops`."""
    if plain.obstacle(problem) is None:
        return plain.plain_attention(problem)
    if factorised.obstacle(problem) is None and factorised.factorised_pays(problem.query):
        return factorised.factorised_attention(problem)
    if is_native() and native.obstacle(problem) is None and native_pays(problem.grid_shape, problem.static_half):
        return native.native_attention(problem, portable_loops)
    if trial.obstacle(problem) is None and trial.is_trusted(problem):
        return fused_attention(problem)
    return attend(problem, portable_loops(problem))


def is_native() -> bool:
    """Whether "native" is there, and to be preferred: on a CPU that is one device. Over several, it gathers arrays."""
    return jax.default_backend() == "cpu" and jax.device_count() == 1 and native.missing() is None


def native_pays(grid_shape: Shape, half: Shape | None) -> bool:
    """Whether "native" is expected to be faster than "dense": not where short rows leave most of its tiles empty.

    A half-span of None is known only at run time. On a large grid it is taken to be small, on a small one to be all.
    """
    n = grid.num_positions(grid_shape)
    if half is None and n >= LEAST_POSITIONS:
        return True
    return NATIVE_PAIR_COST * native.pairs(grid_shape, half or [size - 1 for size in grid_shape]) <= n * n


def chooses_at_run_time(grid_shape: Shape) -> bool:
    """Whether the layout that "auto" has follows a span that is known only as a program runs."""
    return grid.num_positions(grid_shape) >= LEAST_POSITIONS and not is_native()


def portable_loops(problem: Problem) -> list[Loop]:
    """The loops to choose from that every platform has; that of "dense" alone for what no other can do.

    Where the span is known only at run time, so is the choice: one program holds "dense" and every tiling.
    """
    n = grid.num_positions(problem.grid_shape)
    all_pairs = problem.sigma is None or problem.return_weights or problem.dropout_rate > 0 or problem.is_by_pair
    if all_pairs or n < LEAST_POSITIONS:
        return [RowLoop(problem)]
    return [RowLoop(problem), *window_loops(problem)]


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
      implementation: the layout; what "auto" chooses follows from the rest and from the device at hand; "fused" is told
        as "tiled", whose blocks differ little from its own.
    """
    n = grid.num_positions(grid_shape)
    if implementation in ("dense", "reference") or half is None:
        return 1.0
    if implementation == "native" or (implementation == "auto" and is_native() and native_pays(grid_shape, None)):
        return native.pairs(grid_shape, half) / n**2
    reach = half if span_bound is None else span_bound
    if implementation == "patch":
        return math.prod(min(2 * h + 1, s) for h, s in zip(reach, grid_shape, strict=True)) / n
    if implementation == "window":
        return math.prod(2 * h + 1 for h in reach) / n
    choices = tilings(tuple(grid_shape), batch_size, num_heads, 4, span_bound)
    best = min((tiling for tiling, _ in choices), key=lambda tiling: tiling.cost(reach))
    pays = n >= LEAST_POSITIONS and best.cost(reach) < n * n
    return best.pairs(reach) / (n * n) if pays or implementation in ("tiled", "fused") else 1.0
