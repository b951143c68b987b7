"""Layout "native": one compiled kernel for CPUs, whose cost and memory depend on the span."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from posattn_jax.axes import Query
from posattn_jax.ops.attention import operation
from posattn_jax.ops.attention.cpu import kernel
from posattn_jax.ops.attention.problem import Problem
from posattn_jax.ops.attention.xla.tiled import tiled_attention


def native_attention(problem: Problem, otherwise: Callable = tiled_attention) -> tuple[Query, None]:
    """Outputs [b t h d]; `otherwise` (problem, own_gradient) is the attention where the kernel cannot run.

    ValueError if there is an `obstacle`.
    """
    if (found := obstacle(problem)) is not None:
        raise ValueError(f'implementation="native" does not support {found}: "auto" does')
    return operation.kernel_attention(problem, problem.dtype, otherwise)


def obstacle(problem: Problem) -> str | None:
    """The reason why the kernel cannot compute a problem; None if it can."""
    return operation.obstacle(problem) or missing(problem.dtype)


def missing(dtype: Any = jnp.float32) -> str | None:
    """The reason why there is no kernel here; None if there is one."""
    if jax.default_backend() != "cpu":
        return f"the platform {jax.default_backend()}"
    found = kernel.missing(dtype)
    return None if found is None else f"this CPU ({found})"
