"""The compiled kernel for CPUs: whether it is here, and how many pairs it computes."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posattn_jax.axes import Shape
from posattn_jax.ops.attention import support
from posattn_jax.ops.attention.cpu import library, program
from posattn_jax.ops.attention.kernel import FEATURES, Kernel, check, in_all_processes, random_problem, untraced
from posattn_jax.ops.attention.problem import Problem

KERNEL = Kernel(program.forward, program.backward)
# The most queries of a tile, and the most keys of a vector: see vectors.h.
TILE_QUERIES = LANES = 8


def supports(problem: Problem) -> str | None:
    """The reason why the kernel cannot compute a problem; None if it can."""
    return support.supports(support.LOCAL, problem) or missing_here(problem.dtype)


def missing_here(dtype: Any = jnp.float32) -> str | None:
    """The reason why there is no kernel for programs of the default platform; None if there is one."""
    if jax.default_backend() != "cpu":
        return f"the platform {jax.default_backend()}"
    found = missing(dtype)
    return None if found is None else f"this CPU ({found})"


def find(problem: Problem, devices: Sequence[Any]) -> Kernel | None:
    """The kernel for a problem; None if there is none."""
    return KERNEL if missing(problem.dtype) is None else None


def missing(dtype: Any) -> str | None:
    """The reason why there is no kernel for a dtype on this CPU; None if there is one."""
    name = np.dtype(dtype).name
    return in_all_processes(f"native attention in {name}", library.obstacle(name, functools.partial(_check, name)))


def _check(dtype: str) -> None:
    """On a small problem with all parts."""
    of_parts = dict.fromkeys(FEATURES, dtype) | {"relative_bias": dtype, "sigma": np.promote_types(dtype, np.float32)}
    of_parts |= {"key_mask": bool, "segment_ids": np.int32}
    untraced(lambda: check(KERNEL, random_problem(of_parts, (3, 13), 5), dtype))


def pairs(grid_shape: Shape, half: Shape) -> int:
    """The number of query-key pairs computed for a half-span: in tiles of queries, and whole vectors of keys."""
    met = 1
    for axis, (size, reach) in enumerate(zip(grid_shape, half, strict=True)):
        is_last = axis == len(grid_shape) - 1
        tile, lanes = (TILE_QUERIES, LANES) if is_last else (1, 1)
        starts = np.arange(0, size, tile)
        keys = np.minimum(starts + tile + reach, size) - np.maximum(starts - reach, 0)
        met *= int((-(-keys // lanes) * lanes).sum()) * tile
    return met
