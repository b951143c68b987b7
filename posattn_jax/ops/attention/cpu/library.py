"""Compiles the kernel's source where it runs, once per version and CPU, and checks the kernel before it is used."""

import ctypes
import functools
import os
import pathlib
import platform
import threading
from collections.abc import Callable

import jax
import jaxlib

from posattn_jax.system import compiler

SOURCES = pathlib.Path(__file__).parent
OPTIONS = ("-std=c++17", "-O3", "-march=native", "-ffp-contract=fast", "-fPIC", "-shared", "-w")
SCALARS = {"float32": "float", "float64": "double"}
FUNCTIONS = ("forward", "backward")
# The environment variable that turns the kernel off if it is 0.
VARIABLE = "POSATTN_NATIVE"

_lock = threading.RLock()
# By dtype: the reason why there is no kernel, or None if there is one.
_obstacles: dict[str, str | None] = {}


def target(function: str, dtype: str) -> str:
    """XLA's name for a function of the kernel, "forward" or "backward", for "float32" or "float64"."""
    return f"posattn_jax_{function}_{dtype}"


def obstacle(dtype: str, check: Callable[[], None]) -> str | None:
    """The reason why there is no kernel for a dtype; None if it is compiled and registered.

    A newly compiled kernel is kept only if `check` does not raise. The answer is remembered for later calls. If there
    is no kernel, a warning says so once.
    """
    with _lock:
        load = functools.partial(_load, dtype, check)
        return compiler.obstacle(_obstacles, dtype, load, "native attention is not available on this CPU")


def _load(dtype: str, check: Callable[[], None]) -> None:
    if os.environ.get(VARIABLE) == "0":
        raise RuntimeError(f"{VARIABLE}=0")
    options = [*OPTIONS, f"-DSCALAR={SCALARS[dtype]}"]
    depends = (jaxlib.__version__, _cpu())
    with compiler.shared_library(SOURCES / "kernel.cc", options, jax.ffi.include_dir(), depends) as (path, is_new):
        _register(path, dtype)
        if is_new:
            check()


def _register(path: pathlib.Path, dtype: str) -> None:
    library = ctypes.CDLL(str(path))
    for function in FUNCTIONS:
        capsule = jax.ffi.pycapsule(getattr(library, f"posattn_{function}"))
        jax.ffi.register_ffi_target(target(function, dtype), capsule, platform="cpu")


@functools.cache
def _cpu() -> str:
    """The name of the CPU and its instruction sets."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))
