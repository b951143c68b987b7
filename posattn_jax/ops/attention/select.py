"""The table of implementations, and the choice of implementation="auto".

"native" is used where it is available and `native_pays`: see `benchmarks/results/cpu/rivals/`. "fused" is used on a GPU
where its kernels are available: where they were compared with "dense" they took less time, so nothing is weighed (see
docs/gpu.md; not compared: fewer than 1,024 positions). It is used on a TPU if a trial found it correct and the fastest:
see `tpu/verdict.py`.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, Literal

import jax

from posattn_jax.axes import Shape
from posattn_jax.ops import grid
from posattn_jax.ops.attention import operation, platform, support
from posattn_jax.ops.attention.cpu import kernel as native
from posattn_jax.ops.attention.cuda import kernel as cuda
from posattn_jax.ops.attention.cuda.program import operands_dtype
from posattn_jax.ops.attention.problem import Problem
from posattn_jax.ops.attention.tpu import verdict
from posattn_jax.ops.attention.xla import factorised
from posattn_jax.ops.attention.xla.dense import RowLoop
from posattn_jax.ops.attention.xla.loop import Loop, run_loops
from posattn_jax.ops.attention.xla.patches import patch_attention, window_attention
from posattn_jax.ops.attention.xla.reference import reference_attention
from posattn_jax.ops.attention.xla.tiled import window_loops
from posattn_jax.ops.attention.xla.tiles import tilings
from posattn_jax.system.compat import get_default_device

Implementation = Literal["auto", "reference", "dense", "patch", "window", "tiled", "native", "fused", "factorised"]
Found = tuple[Any, Any]  # outputs [b t h d], and weights [b h t s] or None

# On grids with fewer positions, "dense" is the only portable loop that is considered.
LEAST_POSITIONS = 200
# The time per pair of "native", relative to that of "dense"; measured on grids whose last size is 4 or 5.
NATIVE_PAIR_COST = 0.4


def auto_attention(problem: Problem) -> Found:
    """Attention by the implementation that is expected to be the fastest.

    That is, in this order: the platform's own kernel for content scores alone, "factorised", "native" on a CPU, "fused"
    on a GPU, or on a TPU if a trial found it the fastest, and else one of `portable_loops`.
    """
    if platform.supports(problem) is None:
        return platform.platform_attention(problem)
    if support.supports(factorised.UNSUPPORTED, problem) is None and factorised.factorised_pays(problem.query):
        return factorised_attention(problem)
    if is_native() and native.supports(problem) is None and native_pays(problem.grid_shape, problem.static_half):
        return native_attention(problem, portable_attention)
    if is_gpu() and cuda.supports(problem) is None:
        return cuda_attention(problem, portable_attention)
    if verdict.supports(problem) is None and verdict.is_trusted(problem):
        return fused_attention(problem)
    return portable_attention(problem)


def portable_attention(problem: Problem, own_gradient: bool = True) -> Found:
    """Attention by one of `portable_loops`; for `own_gradient` see `run_loops`."""
    return run_loops(problem, portable_loops(problem), RowLoop, own_gradient)


def dense_attention(problem: Problem) -> Found:
    """Attention by the loop over rows."""
    return run_loops(problem, [RowLoop(problem)], RowLoop)


def tiled_attention(problem: Problem, own_gradient: bool = True) -> Found:
    """Attention by one of the loops over windows; for `own_gradient` see `run_loops`."""
    return run_loops(problem, window_loops(problem), RowLoop, own_gradient)


def native_attention(problem: Problem, otherwise: Callable = tiled_attention) -> Found:
    """Attention by the kernel for CPUs, and where it cannot run by the attention `otherwise`."""
    return operation.kernel_attention(problem, problem.dtype, otherwise)


def cuda_attention(problem: Problem, otherwise: Callable = tiled_attention) -> Found:
    """Attention by the kernels for NVIDIA GPUs, and where they cannot run by the attention `otherwise`."""
    return operation.kernel_attention(problem, operands_dtype(problem), otherwise)


def tpu_attention(problem: Problem) -> Found:
    """Attention by the kernels for TPUs."""
    return run_loops(problem, [verdict.for_tpu(problem)], RowLoop)


def gpu_attention(problem: Problem) -> Found:
    """`cuda_attention`, by name; ValueError where the kernels do not support a problem."""
    support.refuse('implementation="fused"', cuda.supports(problem), '"auto"')
    return cuda_attention(problem)


FUSED = {"gpu": gpu_attention, "tpu": tpu_attention}


def fused_attention(problem: Problem) -> Found:
    """Attention by the kernels of the platform that programs run on; ValueError if it has none."""
    device = get_default_device()
    if device.platform not in FUSED:
        allowed = ", ".join(sorted(FUSED))
        raise ValueError(
            f'implementation="fused" has no kernel for platform "{device.platform}": expected one of {allowed}'
        )
    return FUSED[device.platform](problem)


def factorised_attention(problem: Problem) -> Found:
    """Attention by dot products with the factors of sinusoids."""
    return factorised.factorised_attention(problem, dense_attention)


# By name: how it attends, and what it does not support, in the order in which it is told. Problems that are by pair are
# computed by "reference", whatever the implementation, but for "factorised". Kernels lack more on some devices: their
# own `supports` says what.
_TABLE: dict[str, tuple[Callable[[Problem], Found], tuple[str, ...]]] = {
    "auto": (auto_attention, ()),
    "reference": (reference_attention, (support.CUT,)),
    "dense": (dense_attention, (support.PAIRWISE,)),
    "patch": (patch_attention, (*support.LOCAL, support.CUT)),
    "window": (window_attention, (*support.LOCAL, support.CUT)),
    "tiled": (tiled_attention, support.LOCAL),
    "native": (native_attention, support.LOCAL),
    "fused": (fused_attention, support.LOCAL),
    "factorised": (factorised_attention, factorised.UNSUPPORTED),
}
# Those that accept queries on only some rows of the keys' grid.
CUT_IMPLEMENTATIONS = tuple(name for name, (_, unsupported) in _TABLE.items() if support.CUT not in unsupported)


def _by_name(name: str, problem: Problem) -> Found:
    attend, unsupported = _TABLE[name]
    reason = native.supports(problem) if name == "native" else support.supports(unsupported, problem)
    support.refuse(f'implementation="{name}"', reason, '"auto"')
    return attend(problem)


IMPLEMENTATIONS: dict[str, Callable[[Problem], Found]] = {name: functools.partial(_by_name, name) for name in _TABLE}


def is_native() -> bool:
    """Whether "native" is available and preferred: on a CPU."""
    return jax.default_backend() == "cpu" and operation.is_possible_here() and native.missing_here() is None


def is_gpu() -> bool:
    """Whether this is a GPU, and kernels can be in a program that is traced here."""
    return jax.default_backend() == "gpu" and operation.is_possible_here()


def is_cuda() -> bool:
    """Whether the kernels for GPUs are available."""
    return is_gpu() and cuda.is_here()


def native_pays(grid_shape: Shape, half: Shape | None) -> bool:
    """Whether "native" is expected to be faster than "dense". It is not if short rows leave most of its tiles empty.

    None stands for a half-span that is known only at run time. On a large grid it is assumed to be small, on a small
    grid to be the whole grid.
    """
    n = grid.num_positions(grid_shape)
    if half is None and n >= LEAST_POSITIONS:
        return True
    return NATIVE_PAIR_COST * native.pairs(grid_shape, half or [size - 1 for size in grid_shape]) <= n * n


def chooses_at_run_time(grid_shape: Shape) -> bool:
    """Whether "auto" chooses its implementation at run time if the span is known only then."""
    return grid.num_positions(grid_shape) >= LEAST_POSITIONS and not is_native() and not is_cuda()


def portable_loops(problem: Problem) -> list[Loop]:
    """The loops to choose from that run on every platform; only "dense" for problems that the others do not support.

    If the span is known only at run time, the loop is chosen at run time: one program holds "dense" and every tiling.
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
    """The number of scores that an implementation computes, as a share of N x N; above 1 if it computes padding.

    Args:
      grid_shape: S.
      half: the half-span in positions; None without a span.
      span_bound: the static bound that the implementation received.
      batch_size: b; with the number of heads it decides how many tiles are computed at once, and so how they are
        padded.
      num_heads: h.
      implementation: its name. The choice of "auto" follows from the other arguments and from this device.
        "fused" is counted as "tiled", whose blocks differ little.
    """
    n = grid.num_positions(grid_shape)
    if implementation in ("dense", "reference") or half is None:
        return 1.0
    if implementation == "native" or (implementation == "auto" and is_native() and native_pays(grid_shape, span_bound)):
        return native.pairs(grid_shape, half) / n**2
    reach = half if span_bound is None else span_bound
    if implementation == "patch":
        return math.prod(min(2 * h + 1, s) for h, s in zip(reach, grid_shape, strict=True)) / n
    if implementation == "window":
        return math.prod(2 * h + 1 for h in reach) / n
    choices = tilings(tuple(grid_shape), batch_size, num_heads, 4, span_bound)
    best = min((tiling for tiling, _ in choices), key=lambda tiling: tiling.cost(reach))
    pays = n >= LEAST_POSITIONS and best.cost(reach) < n * n
    is_fused = implementation == "fused" or (implementation == "auto" and is_cuda())
    return best.pairs(reach) / (n * n) if pays or is_fused or implementation == "tiled" else 1.0
