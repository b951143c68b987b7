"""The compiled kernels for NVIDIA GPUs: whether they are here, whether they are right, and for which problems."""

import concurrent.futures
import functools
import logging
import threading
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from posattn_jax.ops.attention.cuda import library, program
from posattn_jax.ops.attention.kernel import FEATURES, LEARNED, Kernel, check
from posattn_jax.ops.attention.problem import Problem

# The compute capabilities and dtypes of kernels that are trusted, because these sources were checked on such a device.
# All others are compared with "reference" in the process that uses them.
VERIFIED: tuple[tuple[str, str], ...] = ()

_logger = logging.getLogger(__name__)
_lock = threading.Lock()
# By compute capability and dtype: what is wrong with the kernels on a device of this process, or None.
_faults: dict[tuple[str, str], str | None] = {}


def find(problem: Problem, devices: Sequence[Any]) -> Kernel | None:
    """The kernel for a problem on devices; None if there is none."""
    capability = capability_of(devices)
    if capability is None or obstacle(problem, capability) is not None:
        return None
    return made(program.Device(capability))


def made(device: program.Device) -> Kernel:
    """The kernel for a device."""
    return Kernel(functools.partial(program.forward, device=device), functools.partial(program.backward, device=device))


def capability_of(devices: Sequence[Any]) -> str | None:
    """The compute capability of NVIDIA GPUs that all have the same; else None."""
    found = {getattr(device, "compute_capability", "") for device in devices}
    capability = found.pop() if len(found) == 1 else ""
    return capability if capability.replace(".", "").isdecimal() else None  # AMD's have names such as gfx942


def obstacle(problem: Problem, capability: str) -> str | None:
    """The reason why the kernels for a compute capability cannot compute a problem; None if they can.

    Only what kernels can have at all is looked at: see `operation.obstacle`.
    """
    if problem.dtype == jnp.float64:
        return "float64 on a GPU"
    if (found := library.obstacle(capability)) is not None:
        return f"this GPU ({found})"
    try:
        plan = program.plan_of(problem, program.Device(capability))
    except ValueError as error:
        return str(error)
    if plan.weights > program.MOST_WEIGHTS_OF_HEAD:
        return f"weights of {plan.weights / 2**30:.1f} GiB a head"
    found = fault(capability, jnp.dtype(dtype_of(problem)).name)
    return None if found is None else f"this GPU ({found})"


def dtype_of(problem: Problem) -> Any:
    """The dtype of the kernels' operands and outputs."""
    arrays = {name: getattr(problem, name) for name in (*FEATURES, *LEARNED)}
    return program.operands_dtype({name: x for name, x in arrays.items() if x is not None})


def fault(capability: str, dtype: str) -> str | None:
    """What is wrong with the kernels on a GPU of this process; None if they are right, or no such GPU is here.

    They are compared once, with "reference" on a small problem, unless they are `VERIFIED`. A warning says so if they
    are wrong.
    """
    if (capability, dtype) in VERIFIED:
        return None
    with _lock:
        if (capability, dtype) not in _faults:
            _faults[capability, dtype] = None
            device = next((each for each in jax.local_devices() if capability_of([each]) == capability), None)
            try:
                if device is not None:
                    _check(device, dtype)
            except Exception as error:
                _faults[capability, dtype] = (str(error).strip() or type(error).__name__).splitlines()[0]
                _logger.warning(
                    "CUDA attention fails its check on this GPU, other layouts are used: %s", _faults[capability, dtype]
                )
        return _faults[capability, dtype]


def _check(device: Any, dtype: str) -> None:
    """In a thread of its own, where no program is being traced, nor for other devices."""

    def checked():
        with jax.default_device(device):
            check(made(program.Device(device.compute_capability)), dtype)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(checked).result()
