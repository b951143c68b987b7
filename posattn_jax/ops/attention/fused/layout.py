"""Layout "fused": one kernel a pass, with the loop over the span inside, for the platform that programs run on.

`gpu` for NVIDIA's Hopper, `tpu` for TPUs. There is none for other platforms, CPUs among them: they are
refused.
"""

from collections.abc import Callable

import jax
from jax.extend.backend import get_default_device

from posattn_jax.axes import Query
from posattn_jax.ops.attention.loop import Loop, attend
from posattn_jax.ops.attention.problem import Problem


# Pallas is imported where it is needed: it takes a while, and is the part of jax that changes most.
def _for_gpu(problem: Problem) -> Loop:
    if jax.__version_info__ < GPU_NEEDS:
        needed = ".".join(map(str, GPU_NEEDS))
        raise ValueError(f'implementation="fused" on a GPU needs jax {needed} or newer: {jax.__version__} is installed')
    from posattn_jax.ops.attention.fused.gpu.layout import FusedGpu

    return FusedGpu(problem)


def _for_tpu(problem: Problem) -> Loop:
    from posattn_jax.ops.attention.fused.tpu.layout import FusedTpu

    return FusedTpu(problem)


KERNELS: dict[str, Callable[[Problem], Loop]] = {"gpu": _for_gpu, "tpu": _for_tpu}
# The jax whose Mosaic GPU the kernels for GPUs are written for; those for TPUs take any.
GPU_NEEDS = (0, 10, 2)
# Of Hopper, whose matrix products the kernels are made of; later GPUs no longer have these.
COMPUTE_CAPABILITY = "9.0"


def fused_attention(problem: Problem) -> tuple[Query, None]:
    """Outputs [b t h d].

    Raises:
      ValueError: a device that there is no kernel for, or what its kernel does not support; a jax that is too old.
    """
    problem.check_local("fused")
    device = get_default_device()
    if device.platform not in KERNELS:
        allowed = ", ".join(sorted(KERNELS))
        raise ValueError(
            f'implementation="fused" has no kernel for platform "{device.platform}": expected one of {allowed}'
        )
    capability = getattr(device, "compute_capability", COMPUTE_CAPABILITY)
    if capability != COMPUTE_CAPABILITY:
        raise ValueError(
            f'implementation="fused" has no kernel for compute capability {capability}: expected {COMPUTE_CAPABILITY}'
        )
    return attend(problem, [KERNELS[device.platform](problem)])[0], None
