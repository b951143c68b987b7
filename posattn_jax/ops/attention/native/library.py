"""Compiles the kernel's source where it runs, once per version and CPU, and checks the kernel before it is used."""

import contextlib
import ctypes
import functools
import hashlib
import logging
import os
import pathlib
import platform
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable

import jax
import jaxlib

from posattn_jax.system.cache import cache_folder

SOURCES = pathlib.Path(__file__).parent
COMPILERS = ("c++", "g++", "clang++")
OPTIONS = ("-std=c++17", "-O3", "-march=native", "-ffp-contract=fast", "-fPIC", "-shared", "-w")
SCALARS = {"float32": "float", "float64": "double"}
FUNCTIONS = ("forward", "backward")
# The environment variable that turns the kernel off if it is 0.
VARIABLE = "POSATTN_NATIVE"

_logger = logging.getLogger(__name__)
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
        if dtype not in _obstacles:
            _obstacles[dtype] = None  # so that `check` can call the kernel
            try:
                _load(dtype, check)
            except Exception as error:
                _obstacles[dtype] = (str(error).strip() or type(error).__name__).splitlines()[0]
                _logger.warning(
                    "native attention is not available on this CPU, other layouts are used: %s", _obstacles[dtype]
                )
        return _obstacles[dtype]


def _load(dtype: str, check: Callable[[], None]) -> None:
    compiler = _compiler()
    options = [*OPTIONS, f"-DSCALAR={SCALARS[dtype]}"]
    kept = cache_folder() / f"{_digest(compiler, options)}.so"
    if kept.exists():
        _register(kept, dtype)
        return
    _logger.info("compiling native attention, once per CPU: %s", kept)
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        place = kept.parent
    except OSError:  # the home folder is not writable
        place = None
    with tempfile.TemporaryDirectory(dir=place) as folder:
        new = pathlib.Path(folder) / kept.name
        command = [compiler, *options, f"-I{jax.ffi.include_dir()}", str(SOURCES / "kernel.cc"), "-o", str(new)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
            raise RuntimeError(f"{compiler}: {lines[0] if lines else f'exit code {done.returncode}'}")
        _register(new, dtype)
        check()
        with contextlib.suppress(OSError):
            new.replace(kept)


def _register(path: pathlib.Path, dtype: str) -> None:
    library = ctypes.CDLL(str(path))
    for function in FUNCTIONS:
        capsule = jax.ffi.pycapsule(getattr(library, f"posattn_{function}"))
        jax.ffi.register_ffi_target(target(function, dtype), capsule, platform="cpu")


def _compiler() -> str:
    if os.environ.get(VARIABLE) == "0":
        raise RuntimeError(f"{VARIABLE}=0")
    names = [os.environ["CXX"]] if os.environ.get("CXX") else COMPILERS
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        raise RuntimeError(f"no C++ compiler is found ({', '.join(names)})")
    return found


def _digest(compiler: str, options: list[str]) -> str:
    """A hash of everything that the compiled kernel depends on."""
    parts = [*options, _version(compiler), jaxlib.__version__, _cpu()]
    parts += [path.read_text(encoding="utf-8") for path in sorted(SOURCES.iterdir()) if path.suffix in (".h", ".cc")]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _version(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout


@functools.cache
def _cpu() -> str:
    """The name of the CPU and its instruction sets."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))
