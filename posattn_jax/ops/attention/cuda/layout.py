"""Layout "fused" on an NVIDIA GPU: compiled kernels whose cost and memory depend on the span."""

from collections.abc import Callable

from jax.extend.backend import get_default_device

from posattn_jax.axes import Query
from posattn_jax.ops.attention import operation
from posattn_jax.ops.attention.cuda import kernel, program
from posattn_jax.ops.attention.problem import Problem
from posattn_jax.ops.attention.xla.tiled import tiled_attention


def cuda_attention(problem: Problem, otherwise: Callable = tiled_attention) -> tuple[Query, None]:
    """Outputs [b t h d]; `otherwise` (problem, own_gradient) is the attention where the kernels cannot run.

    ValueError if there is an `obstacle`.
    """
    if (found := obstacle(problem)) is not None:
        raise ValueError(f'implementation="fused" does not support {found}: "auto" does')
    return operation.kernel_attention(problem, program.operands_dtype(problem), otherwise)


def obstacle(problem: Problem) -> str | None:
    """The reason why the kernels cannot compute a problem on the default device; None if they can."""
    device = get_default_device()
    capability = kernel.capability_of([device])
    if capability is None:
        return f"the device {device.device_kind}"
    return operation.obstacle(problem) or kernel.obstacle(problem, capability)


def is_here() -> bool:
    """Whether there are kernels for the default device."""
    capability = kernel.capability_of([get_default_device()])
    return capability is not None and kernel.missing(capability) is None
