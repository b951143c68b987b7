"""The compiled kernels for NVIDIA GPUs: whether they are here, whether they are right, and for which problems."""

import functools
import threading
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from posattn_jax.ops.attention import support
from posattn_jax.ops.attention.cuda import library, program
from posattn_jax.ops.attention.kernel import Kernel, check, in_all_processes, random_problem, untraced
from posattn_jax.ops.attention.problem import Problem
from posattn_jax.system import compiler
from posattn_jax.system.compat import get_default_device

# The compute capabilities and dtypes of kernels that are trusted, because these sources were checked on such a device.
# Every other program is compared with "reference" in the process that is about to use it.
VERIFIED: tuple[tuple[str, str], ...] = ()

# By program, as `fault` tells them apart: what is wrong with it on a device of this process, or None.
_faults: dict[tuple, str | None] = {}
_locks: dict[tuple, threading.Lock] = {}


def supports(problem: Problem) -> str | None:
    """The reason why the kernels cannot compute a problem on the default device; None if they can."""
    device = get_default_device()
    capability = capability_of([device])
    if capability is None:
        return f"the device {device.device_kind}"
    return support.supports(support.LOCAL, problem) or obstacle(problem, capability)


def is_here() -> bool:
    """Whether there are kernels for the default device."""
    capability = capability_of([get_default_device()])
    return capability is not None and missing(capability) is None


def find(problem: Problem, devices: Sequence[Any]) -> Kernel | None:
    """The kernel for a problem on devices; None if there is none."""
    capability = capability_of(devices)
    if capability is None or obstacle(problem, capability) is not None:
        return None
    return made(program.Device(capability))


def made(device: program.Device, plan: program.Plan | None = None) -> Kernel:
    """The kernel for a device, with another plan than its own if one is given."""
    options = {"device": device, "plan": plan}
    return Kernel(functools.partial(program.forward, **options), functools.partial(program.backward, **options))


def capability_of(devices: Sequence[Any]) -> str | None:
    """The compute capability of NVIDIA GPUs that all have the same; else None."""
    found = {getattr(device, "compute_capability", "") for device in devices}
    capability = found.pop() if len(found) == 1 else ""
    return capability if capability.replace(".", "").isdecimal() else None  # AMD's have names such as gfx942


def obstacle(problem: Problem, capability: str) -> str | None:
    """The reason why the kernels for a compute capability cannot compute a problem; None if they can.

    What `support` says of all of them is not looked at.
    """
    if problem.dtype == jnp.float64:
        return "float64 on a GPU"
    try:
        plan = program.plan_of(problem, program.Device(capability))
    except ValueError as error:
        return str(error)
    if _device_of(capability) is not None:
        library.begin(plan.defines, capability)
    if (found := missing(capability)) is not None:
        return f"this GPU ({found})"
    if plan.weights > program.MOST_WEIGHTS_OF_HEAD:
        return f"weights of {plan.weights / 2**30:.1f} GiB a head"
    of_program = f"CUDA attention {plan.defines} {plan.slabs}"
    found = in_all_processes(of_program, fault(problem, plan, capability))
    return None if found is None else f"this GPU ({found})"


def missing(capability: str) -> str | None:
    """The reason why there are no kernels for a compute capability; None if there are."""
    return in_all_processes("CUDA attention", library.obstacle(capability), capability)


def fault(problem: Problem, plan: program.Plan, capability: str) -> str | None:
    """What is wrong with a problem's program on a GPU of this process; None if it is right, or no such GPU is here.

    It is compared once, with "reference" on a small problem with the same parts, unless it is `VERIFIED`. If it is
    wrong, a warning says so.
    """
    dtype = jnp.dtype(program.operands_dtype(problem)).name
    if (capability, dtype) in VERIFIED:
        return None
    which = (capability, plan.defines, plan.slabs)
    without = f"CUDA attention with {problem.query.shape[-1]} features of {dtype} fails its check on this GPU"

    def load():
        if (device := _device_of(capability)) is not None:
            _check(problem, plan, device, capability)

    with _locks.setdefault(which, threading.Lock()):
        return compiler.obstacle(_faults, which, load, without)


def _device_of(capability: str) -> Any:
    """A GPU of this process of a compute capability; None if there is none."""
    return next((each for each in jax.local_devices() if capability_of([each]) == capability), None)


def _check(problem: Problem, plan: program.Plan, device: Any, capability: str) -> None:
    small = program.on_small_grid(plan, program.most_half(problem))
    axes = slice(-len(problem.grid_shape), None)
    shape, half = small.size[axes], program.most_half(problem)[axes]
    # Less than the grid, so that a span hides some pairs.
    bound = tuple(max(1, min(h, n - 2)) for h, n in zip(half, shape, strict=True))
    of_parts = {name: x.dtype for name, x in problem.given.items()}
    fields = {"span_mode": problem.span_mode, "is_causal": problem.is_causal}
    if problem.sigma is not None:
        fields |= {"sigma": problem.axes.sigma, "span_bound": bound}

    def checked():
        with jax.default_device(device):
            example = random_problem(of_parts, shape, problem.query.shape[-1], **fields)
            check(made(program.Device(capability), small), example, program.operands_dtype(problem))

    untraced(checked)
