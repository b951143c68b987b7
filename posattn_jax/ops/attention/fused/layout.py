"""Layout "fused": kernels for the platform that programs run on, with the loop over the span inside.

`gpu` has kernels for NVIDIA GPUs from Ampere on, `tpu` for TPUs. Other platforms, such as CPUs, are refused.
"""

from collections.abc import Callable

import jax
from jax.extend.backend import get_default_device

from posattn_jax.axes import Query
from posattn_jax.ops.attention.dense import RowLoop
from posattn_jax.ops.attention.loop import Loop, attend
from posattn_jax.ops.attention.problem import Problem


# Pallas is imported only where it is needed: the import takes a while, and Pallas is the part of jax that changes most.
def for_gpu(problem: Problem, capability: str | None = None) -> Loop:
    """The kernels for a GPU of this compute capability, by default that of this device.

    Raises:
      ValueError: there are no such kernels, jax is too old for them, or they do not support the problem.
    """
    if capability is None:
        capability = getattr(get_default_device(), "compute_capability", HOPPER)
    major = capability.partition(".")[0]
    if not major.isdigit() or int(major) < 8:  # AMD's have names such as gfx942
        raise ValueError(
            f'implementation="fused" has no kernel for compute capability {capability}: expected 8.0 or newer'
        )
    needed = GPU_NEEDS if capability == HOPPER else MMA_NEEDS
    if jax.__version_info__ < needed:
        raise ValueError(
            f'implementation="fused" on a GPU of compute capability {capability} needs jax '
            f"{'.'.join(map(str, needed))} or newer: {jax.__version__} is installed"
        )
    from posattn_jax.ops.attention.fused.gpu.layout import FusedGpu

    return FusedGpu(problem, capability)


def _for_tpu(problem: Problem) -> Loop:
    from posattn_jax.ops.attention.fused.tpu.layout import FusedTpu

    return FusedTpu(problem)


KERNELS: dict[str, Callable[[Problem], Loop]] = {"gpu": for_gpu, "tpu": _for_tpu}
# The only compute capability that has `wgmma`; all from Ampere on have `mma`.
HOPPER = "9.0"
# The first versions of jax whose Mosaic GPU has `wgmma` and `mma`; the kernels for TPUs run with any version.
GPU_NEEDS, MMA_NEEDS = (0, 10, 2), (0, 12)


def fused_attention(problem: Problem) -> tuple[Query, None]:
    """Outputs [b t h d].

    Raises:
      ValueError: the device has no kernel, its kernel does not support the problem, or jax is too old.
    """
    problem.check_local("fused")
    device = get_default_device()
    if device.platform not in KERNELS:
        allowed = ", ".join(sorted(KERNELS))
        raise ValueError(
            f'implementation="fused" has no kernel for platform "{device.platform}": expected one of {allowed}'
        )
    return attend(problem, [KERNELS[device.platform](problem)], RowLoop)[0], None
