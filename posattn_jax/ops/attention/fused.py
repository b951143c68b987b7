"""Layout "fused": kernels for the platform that programs run on, with the loop over the span inside.

`cuda/` has kernels for NVIDIA GPUs from Ampere on, `tpu/` for TPUs. Other platforms, such as CPUs, are refused.
"""

from collections.abc import Callable
from typing import Any

from jax.extend.backend import get_default_device

from posattn_jax.axes import Query
from posattn_jax.ops.attention.cuda.layout import cuda_attention
from posattn_jax.ops.attention.problem import Problem
from posattn_jax.ops.attention.xla.dense import RowLoop
from posattn_jax.ops.attention.xla.loop import Loop, run_loops


# Pallas is imported only where it is needed: the import takes a while, and Pallas is the part of jax that changes most.
def for_tpu(problem: Problem) -> Loop:
    """The kernels for a TPU; ValueError if they do not support the problem."""
    from posattn_jax.ops.attention.tpu.layout import FusedTpu

    return FusedTpu(problem)


def _on_tpu(problem: Problem) -> tuple[Any, Any]:
    return run_loops(problem, [for_tpu(problem)], RowLoop)


LAYOUTS: dict[str, Callable[[Problem], tuple[Any, Any]]] = {"gpu": cuda_attention, "tpu": _on_tpu}


def fused_attention(problem: Problem) -> tuple[Query, None]:
    """Outputs [b t h d].

    Raises:
      ValueError: the device has no kernel, or its kernel does not support the problem.
    """
    problem.check_local("fused")
    device = get_default_device()
    if device.platform not in LAYOUTS:
        allowed = ", ".join(sorted(LAYOUTS))
        raise ValueError(
            f'implementation="fused" has no kernel for platform "{device.platform}": expected one of {allowed}'
        )
    return LAYOUTS[device.platform](problem)[0], None
