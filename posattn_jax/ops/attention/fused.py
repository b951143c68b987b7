"""Layout "fused": one kernel for everything, with the loop over the span inside it, for the platform of the program.

`fused_gpu` for NVIDIA GPUs. A program that is lowered for any other platform, a CPU too, is refused while it is traced.
"""

from collections.abc import Callable

import jax

from posattn_jax.axes import Query
from posattn_jax.ops.attention.fused_gpu import FusedGpu
from posattn_jax.ops.attention.loop import Loop, attend
from posattn_jax.ops.attention.problem import Problem

KERNELS: dict[str, Callable[[Problem], Loop]] = {"gpu": FusedGpu, "cuda": FusedGpu}


def fused_attention(problem: Problem) -> tuple[Query, None]:
    """Outputs [b t h d].

    Raises:
      ValueError: a platform that there is no kernel for, or what its kernel does not support.
    """
    problem.check_local("fused")
    platform = jax.default_backend()
    if platform not in KERNELS:
        allowed = ", ".join(sorted(KERNELS))
        raise ValueError(f'implementation="fused" has no kernel for platform "{platform}": expected one of {allowed}')
    return attend(problem, [KERNELS[platform](problem)])[0], None
