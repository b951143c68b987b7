"""The kernels for GPUs on the lanes of this CPU, in place of the one for CPUs."""

import contextlib
from collections.abc import Iterator

import jax
import pytest

from posattn_jax.ops.attention import operation, select
from posattn_jax.ops.attention.cuda import kernel, library, program


@contextlib.contextmanager
def on_lanes(order: int = 0, capability: str = "8.6") -> Iterator[None]:
    """Inside, `implementation="fused"` is that of a GPU, and its programs run on lanes, in an order."""

    def find(problem, devices):
        device = program.Device(capability, lanes=True, order=order)
        return None if kernel.obstacle(problem, capability) else kernel.made(device)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(operation.KERNELS, "cpu", find)
        patch.setitem(select.FUSED, "cpu", select.gpu_attention)
        patch.setattr(kernel, "capability_of", lambda devices: capability)
        patch.setattr(library, "obstacle", lambda architecture: None)
        patch.setattr(kernel, "VERIFIED", tuple((capability, dtype) for dtype in ("float32", "bfloat16")))
        _forget()
        yield
    _forget()


def _forget():
    """Programs that were lowered for other kernels."""
    operation._jitted.cache_clear()
    jax.clear_caches()
