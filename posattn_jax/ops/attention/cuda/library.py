"""Compiles the kernels where they run: for the GPU by NVRTC, which comes with JAX, and what launches them by C++."""

import contextlib
import ctypes
import functools
import importlib.util
import logging
import os
import pathlib
import threading
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jaxlib

from posattn_jax.system import compiler
from posattn_jax.system.compiler import digest, first_error, shared_library
from posattn_jax.system.files import cache_folder, write_atomically

SOURCES = pathlib.Path(__file__).parent
# XLA's name for the function that launches the kernels.
TARGET = "posattn_cuda"
OPTIONS = ("-std=c++17", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-w")
# The oldest architecture with the instructions that the kernels use: Ampere.
OLDEST = 80
# The environment variable that turns the kernels off if it is 0.
VARIABLE = "POSATTN_CUDA"

_logger = logging.getLogger(__name__)
_lock = threading.Lock()
# By architecture: the reason why there are no kernels, or None if there are.
_obstacles: dict[str, str | None] = {}


def _once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Remembers results, each of which one thread alone computes."""
    cached, locks = functools.cache(function), {}

    @functools.wraps(function)
    def locked(*arguments):
        with locks.setdefault(arguments, threading.Lock()):
            return cached(*arguments)

    return locked


def obstacle(arch: str) -> str | None:
    """The reason why nothing can be compiled for GPUs of an architecture, such as "8.0"; None if it can.

    The answer is remembered for later calls. If nothing can, a warning says so once.
    """

    def load():
        if os.environ.get(VARIABLE) == "0":
            raise RuntimeError(f"{VARIABLE}=0")
        _architecture(arch)
        handler()

    with _lock:
        return compiler.obstacle(_obstacles, arch, load, "CUDA attention is not available on this GPU")


@_once
def program(defines: tuple[str, ...], arch: str) -> str:
    """The name under which `TARGET` finds the kernels that are compiled with `defines`, such as "NAME=VALUE"."""
    name = digest(SOURCES, [*_options(defines, arch), ".".join(map(str, _nvrtc().version))])
    kept = cache_folder() / f"{SOURCES.name}-{name}.cubin"
    try:
        cubin = kept.read_bytes()
    except OSError:
        _logger.info("compiling CUDA attention, once per kind of GPU: %s", kept)
        cubin = compile_program(defines, arch)
        with contextlib.suppress(OSError):  # the home folder may not be writable
            write_atomically(kept, lambda file: file.write(cubin))
    handler().posattn_register(name.encode(), cubin, ctypes.c_size_t(len(cubin)))
    return name


def begin(defines: tuple[str, ...], arch: str) -> None:
    """Compiles a program in the background if it is the first one, while `obstacle` compiles what launches it."""

    def compiled():
        with contextlib.suppress(Exception):  # who asks for it is told
            program(defines, arch)

    if arch not in _obstacles and os.environ.get(VARIABLE) != "0":
        threading.Thread(target=compiled, daemon=True).start()


def compile_program(defines: tuple[str, ...], arch: str) -> bytes:
    """The binary for GPUs of an architecture, such as "8.0"."""
    sources = {path.name: path.read_bytes() for path in SOURCES.iterdir() if path.suffix in (".cu", ".h")}
    return _nvrtc().compile("kernel.cu", sources, _options(defines, arch))


def _options(defines: tuple[str, ...], arch: str) -> list[str]:
    return [f"--gpu-architecture=sm_{_architecture(arch)}", "--std=c++17", *(f"-D{each}" for each in defines)]


@_once
def handler() -> ctypes.CDLL:
    """The library that launches the kernels, whose functions are then known to XLA as `TARGET`."""
    with _launcher() as (path, _):
        library = ctypes.CDLL(str(path))
    stages = ("initialize", "execute")
    capsules = {stage: jax.ffi.pycapsule(getattr(library, f"posattn_{stage}")) for stage in stages}
    jax.ffi.register_ffi_target(TARGET, capsules, platform="CUDA")
    return library


@_once
def lanes(defines: tuple[str, ...]) -> str:
    """XLA's name for the same function with the kernels compiled for a CPU, to test them without a GPU."""
    with _launcher("LANES", *defines) as (path, _):
        capsule = jax.ffi.pycapsule(ctypes.CDLL(str(path)).posattn_execute)
    target = f"posattn_lanes_{path.stem}"
    jax.ffi.register_ffi_target(target, capsule, platform="cpu")
    return target


def _launcher(*defines: str) -> contextlib.AbstractContextManager[tuple[pathlib.Path, bool]]:
    options = [*OPTIONS, *(f"-D{each}" for each in defines)]
    return shared_library(SOURCES / "handler.cc", options, jax.ffi.include_dir(), [jaxlib.__version__])


def _architecture(arch: str) -> int:
    """The newest architecture known to NVRTC whose programs run on GPUs of `arch`: 86 for "8.6"."""
    major, minor = map(int, arch.split("."))
    if 10 * major + minor < OLDEST:
        raise RuntimeError(f"compute capability {arch} is older than {OLDEST / 10}")
    nvrtc = _nvrtc()
    found = [each for each in nvrtc.architectures if each // 10 == major and each <= 10 * major + minor]
    if not found:
        raise RuntimeError(f"NVRTC {nvrtc.version[0]}.{nvrtc.version[1]} does not know compute capability {arch}")
    return max(found)


class _Nvrtc:
    """NVIDIA's compiler as a library."""

    def __init__(self, path: str):
        if os.path.isabs(path):  # NVRTC looks for its other half by name alone
            for each in pathlib.Path(path).parent.glob("libnvrtc-builtins.so.*"):
                ctypes.CDLL(str(each))
        self._library = ctypes.CDLL(path)
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        self._call("Version", ctypes.byref(major), ctypes.byref(minor))
        self._call("GetNumSupportedArchs", ctypes.byref(count))
        architectures = (ctypes.c_int * count.value)()
        self._call("GetSupportedArchs", architectures)
        self.version = (major.value, minor.value)
        self.architectures = tuple(architectures)

    def compile(self, name: str, sources: dict[str, bytes], options: list[str]) -> bytes:
        """The binary made of a source, which may include the others."""
        others = [each for each in sources if each != name]
        compiled = ctypes.c_void_p()
        self._call(
            "CreateProgram",
            ctypes.byref(compiled),
            sources[name],
            name.encode(),
            len(others),
            _strings(sources[each] for each in others),
            _strings(each.encode() for each in others),
        )
        try:
            given = _strings(each.encode() for each in options)
            if self._library.nvrtcCompileProgram(compiled, len(given), given):
                log = self._result("ProgramLog", compiled).rstrip(b"\0").decode(errors="replace")
                raise RuntimeError(f"NVRTC: {first_error(log)}")
            return self._result("CUBIN", compiled)
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(compiled))

    def _result(self, what: str, compiled: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"Get{what}Size", compiled, ctypes.byref(size))
        result = ctypes.create_string_buffer(size.value)
        self._call(f"Get{what}", compiled, result)
        return result.raw

    def _call(self, function: str, *arguments) -> None:
        if code := getattr(self._library, f"nvrtc{function}")(*arguments):
            raise RuntimeError(f"NVRTC: {self._library.nvrtcGetErrorString(code).decode()}")


def _strings(values: Iterable[bytes]) -> ctypes.Array:
    values = list(values)
    return (ctypes.c_char_p * len(values))(*values)


@_once
def _nvrtc() -> _Nvrtc:
    for path in _candidates():
        with contextlib.suppress(OSError, AttributeError):
            return _Nvrtc(path)
    raise RuntimeError("NVRTC is not found: it comes with jax[cuda12] and jax[cuda13]")


def _candidates() -> list[str]:
    """Where NVRTC may be: first in the packages of the CUDA version that JAX uses, the newest first."""
    spec = importlib.util.find_spec("nvidia")
    folders = [pathlib.Path(each) for each in spec.submodule_search_locations or ()] if spec else []
    packaged = [path for folder in folders for path in folder.glob("*/lib/libnvrtc.so.*")]

    def rank(path):
        major = int(path.name.split(".")[2])
        return importlib.util.find_spec(f"jax_cuda{major}_plugin") is not None, major

    return [*map(str, sorted(packaged, key=rank, reverse=True)), "libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12"]
