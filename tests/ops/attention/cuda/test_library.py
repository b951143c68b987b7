"""What compiles and launches the CUDA kernels, with small kernels in their place; and how it meets CUDA's driver."""

import concurrent.futures
import importlib
import json
import logging
import pathlib
import shutil
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax.ops.attention.cuda import library
from posattn_jax.system.compiler import find_compiler
from tests.support.compiler import missing, needs_compiler

KERNELS = """
#include "device.h"
namespace posattn {
struct Params {
  const float* x;
  float* y;
  float* sum;
  int32_t size, first;
  float scale;
};
// The last block to come writes; the rest of y is left as it is.
KERNEL(forward, 1) {
  const int i = 128 * (p.first + block_x()) + thread();
  if (i < p.size) p.y[i] = SCALE * p.scale * p.x[i];
  if (thread() == 127) p.y[p.size] = i;
}
// Each thread reads what another one has written.
KERNEL(backward, 2) {
  float* shared = reinterpret_cast<float*>(shared_memory());
  shared[thread()] = thread() < p.size ? p.x[thread()] : 0;
  sync_block();
  add(p.sum + block_y(), shared[127 - thread()]);
}
KERNEL(backward_keys, 1) { p.y[thread()] = p.sum ? 1 : 2; }
}  // namespace posattn
"""
DEFINES = ("SCALE=2",)


no_nvrtc = missing(library._nvrtc)
needs_nvrtc = pytest.mark.skipif(no_nvrtc is not None, reason=str(no_nvrtc))


def test_the_first_program_is_compiled_meanwhile(monkeypatch):
    """And no other one: then what launches it is there, or is known to be missing."""
    asked = threading.Event()
    monkeypatch.setattr(library, "program", lambda *arguments: asked.set())
    monkeypatch.setattr(library, "_obstacles", {"8.0": None})
    monkeypatch.delenv(library.VARIABLE, raising=False)
    library.begin(DEFINES, "9.0")
    assert asked.wait(10)
    asked.clear()
    library.begin(DEFINES, "8.0")
    monkeypatch.setenv(library.VARIABLE, "0")
    library.begin(DEFINES, "9.0")
    assert not asked.wait(0.1)


@pytest.fixture
def kernels(monkeypatch, tmp_path):
    """The folder of the sources, with small kernels."""
    folder = tmp_path / "sources"
    folder.mkdir()
    for name in ("device.h", "lanes.h", "handler.cc"):
        shutil.copy(library.SOURCES / name, folder)
    (folder / "kernel.cu").write_text(KERNELS)
    monkeypatch.setattr(library, "SOURCES", folder)
    forget(monkeypatch)
    return folder


def forget(monkeypatch):
    """As in a new process."""
    monkeypatch.setattr(library, "_obstacles", {})
    for name in ("program", "lanes"):
        monkeypatch.setattr(library, name, library._once(getattr(library, name).__wrapped__))


def launch(target, x, launches, clear=(), pointers=((0, 0), (2, 1), (4, 2)), order=0, size=None):
    """Calls kernels with one argument; results: y, a number longer than x, and sum."""
    x = jnp.asarray(x, jnp.float32)
    words = np.zeros(10, np.int32)
    words[6:8] = len(x) if size is None else size, 0
    words[8:9].view(np.float32)[0] = 0.5
    results = (jax.ShapeDtypeStruct((len(x) + 1,), jnp.float32), jax.ShapeDtypeStruct((2,), jnp.float32))
    call = jax.ffi.ffi_call(target, results)
    return call(
        x,
        program="not looked at",
        launches=np.array([n for each in launches for n in each], np.int64),
        clear=np.array(clear, np.int64),
        words=words,
        pointers=np.array(pointers, np.int64).reshape(-1),
        order=np.int64(order),
    )


@needs_compiler
class TestLanes:
    @pytest.fixture
    def target(self, kernels):
        return library.lanes(DEFINES)

    def test_launches(self, target):
        """One call launches a kernel twice, each time with another first block, and another kernel."""
        x = np.arange(300.0)
        y, sums = launch(target, x, [(0, 1, 1, 0, 0), (0, 2, 1, 0, 1, 7, 1), (1, 3, 2, 512, 1, 6, 100)], clear=(1,))
        np.testing.assert_array_equal(y[:300], x)
        np.testing.assert_array_equal(sums, [3 * x[:100].sum()] * 2)

    def test_what_is_not_written_is_nan(self, target):
        y, sums = launch(target, np.ones(300), [(0, 1, 1, 0, 0)])
        assert np.isfinite(y[:128]).all() and np.isnan(y[128:300]).all() and np.isnan(sums).all()
        y, _ = launch(target, np.ones(300), [])
        assert np.isnan(y).all()
        y, _ = launch(target, np.ones(300), [(0, 0, 1, 0, 0)])
        assert np.isnan(y).all()

    def test_pointers_may_be_null(self, target):
        y, _ = launch(target, np.ones(200), [(2, 1, 1, 0, 0)])
        assert (y[:128] == 1).all()
        y, _ = launch(target, np.ones(200), [(2, 1, 1, 0, 0)], pointers=((0, 0), (2, 1), (4, -1)))
        assert (y[:128] == 2).all()

    @pytest.mark.parametrize(
        "options, message",
        [
            ({"launches": [(3, 1, 1, 0, 0)]}, "no such kernel"),
            ({"launches": [(0, 1, 1, 0)]}, "a launch is cut"),
            ({"launches": [(0, 1, 1, 0, 1, 2)]}, "a launch is cut"),
            ({"launches": [(0, 1, 1, 0, 1, 10, 0)]}, "no such word"),
            ({"pointers": ((9, 0),)}, "no such word"),
            ({"pointers": ((0, 3),)}, "no such buffer"),
            ({"clear": (2,)}, "no such result"),
        ],
    )
    def test_wrong_attributes(self, target, options, message):
        with pytest.raises(jax.errors.JaxRuntimeError, match=message):
            jax.block_until_ready(launch(target, np.ones(3), **{"launches": [(0, 1, 1, 0, 0)]} | options))

    def test_each_program_is_another_function(self, target):
        other = library.lanes(("SCALE=4",))
        assert other != target and library.lanes(DEFINES) == target
        for name, scale in ((target, 1), (other, 2)):
            y, _ = launch(name, np.ones(3), [(0, 1, 1, 0, 0)])
            np.testing.assert_array_equal(y[:3], scale)


@needs_compiler
def test_on_a_gpu(tmp_path):
    """What the handler asks of CUDA's driver, of which a fake writes it down, in a process of its own."""
    fake, here = tmp_path / "fake.so", pathlib.Path(__file__).parent
    command = [find_compiler(), "-std=c++17", "-shared", "-fPIC", "-w", "-Wl,-soname,libcuda.so.1"]
    subprocess.run([*command, f"-I{jax.ffi.include_dir()}", str(here / "fake_cuda.cc"), "-o", str(fake)], check=True)
    with library._launcher() as (handler, _):
        command = [sys.executable, str(here / "fake_cuda.py"), str(fake), str(handler)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    before, at_first, then, elsewhere, failed, traits = json.loads(done.stdout)
    assert before == ["error: posattn_cuda: the program name was not compiled in this process"]
    # Shared memory is asked for once per function and size; nothing is forbidden while a module is loaded.
    loaded = """load IMAGE mode 2
function forward of c0
attribute 8 of c007: 70000
attribute 9 of c007: 100
function backward of c0
attribute 8 of c008: 1000
attribute 9 of c008: 100
function forward of c0
attribute 8 of c007: 80000
attribute 9 of c007: 100
function backward_keys of c0
attribute 8 of c00d: 0
attribute 9 of c00d: 100"""
    launched = """set c to 0, 4 times on 5
launch c007 of 7 2 1 blocks, 128 threads, 70000 bytes on 5: a f c 0 0 0 7
launch c008 of 3 1 1 blocks, 128 threads, 1000 bytes on 5: a f c 0 63 ffffffff 7
launch c007 of 5 1 1 blocks, 128 threads, 80000 bytes on 5: a f c 0 0 8 7"""
    assert at_first == loaded.splitlines()
    assert then == launched.splitlines()
    assert elsewhere == [line.replace("c0", "c1") for line in (loaded + "\n" + launched).splitlines()]
    assert failed[-1] == "error: posattn_cuda: a result is not zeroed: what CUDA says"
    assert traits == [1, 1]  # may be a part of a CUDA graph


@needs_nvrtc
class TestNvrtc:
    @pytest.mark.parametrize("arch", ["8.0", "8.9", "9.0", "12.0"])
    def test_compiles(self, kernels, arch):
        cubin = library.compile_program(DEFINES, arch)
        assert cubin.startswith(b"\x7fELF")
        assert all(name in cubin for name in (b".text.forward\0", b".text.backward\0", b".text.backward_keys\0"))

    def test_an_error_is_the_line_that_says_so(self, kernels):
        (kernels / "kernel.cu").write_text('#include "device.h"\nDEVICE int f() { return nothing; }\n')
        with pytest.raises(RuntimeError, match=r'^NVRTC: kernel.cu\(2\): .*"nothing"'):
            library.compile_program((), "9.0")

    def test_the_newest_architecture_that_runs(self, monkeypatch):
        monkeypatch.setattr(library._nvrtc(), "architectures", (75, 80, 86, 90, 100, 120))
        assert [library._architecture(arch) for arch in ("8.0", "8.9", "10.3", "12.1")] == [80, 86, 100, 120]
        with pytest.raises(RuntimeError, match="does not know compute capability 11.0"):
            library._architecture("11.0")
        assert library.obstacle("7.5") == "compute capability 7.5 is older than 8.0"

    @needs_compiler
    def test_compiled_once(self, kernels, monkeypatch, tmp_path):
        handler = library.handler()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setattr(library, "handler", lambda: handler)
        first = library.program(DEFINES, "9.0")
        (kept,) = tmp_path.glob("cache/posattn_jax/*")
        assert kept.name.endswith(f"-{first}.cubin") and kept.read_bytes().startswith(b"\x7fELF")
        names = {library.program(*each) for each in ((DEFINES, "9.0"), (DEFINES, "8.0"), (("SCALE=3",), "9.0"))}
        assert first in names and len(names) == 3

        forget(monkeypatch)
        monkeypatch.setattr(library, "compile_program", None)
        assert library.program(DEFINES, "9.0") == first
        (kernels / "kernel.cu").write_text(KERNELS + "\n")
        forget(monkeypatch)
        with pytest.raises(TypeError):
            library.program(DEFINES, "9.0")

    @needs_compiler
    def test_a_cache_that_cannot_be_written(self, kernels, monkeypatch, tmp_path):
        handler = library.handler()
        (tmp_path / "file").touch()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        monkeypatch.setattr(library, "handler", lambda: handler)
        assert library.program(DEFINES, "9.0")


def test_different_programs_are_compiled_at_a_time():
    both, compiled = threading.Barrier(2, timeout=60), []

    def compile_one(name):
        compiled.append(name)
        both.wait()
        return name

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(library._once(compile_one), "abab")) == list("abab")
    assert sorted(compiled) == ["a", "b"]


@pytest.mark.parametrize(
    "variable, value, reason",
    [("POSATTN_CUDA", "0", "POSATTN_CUDA=0"), ("CXX", "/no/compiler", "no C++ compiler is found (/no/compiler)")],
)
def test_an_obstacle_is_said_once(monkeypatch, caplog, variable, value, reason):
    forget(monkeypatch)
    monkeypatch.setattr(library, "handler", library._once(library.handler.__wrapped__))
    monkeypatch.setattr(library, "_architecture", lambda arch: 90)
    monkeypatch.setenv(variable, value)
    assert library.obstacle("9.0") == library.obstacle("9.0") == reason
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and reason in record.message


def test_without_nvrtc(monkeypatch):
    forget(monkeypatch)
    monkeypatch.setattr(library, "_nvrtc", library._once(library._nvrtc.__wrapped__))
    monkeypatch.setattr(library, "_candidates", lambda: ["/no/libnvrtc.so.13"])
    assert library.obstacle("9.0") == "NVRTC is not found: it comes with jax[cuda12] and jax[cuda13]"


def test_nvrtc_of_the_cuda_version_that_jax_uses(monkeypatch, tmp_path):
    paths = [tmp_path / "nvidia" / name for name in ("cu13/lib/libnvrtc.so.13", "cuda_nvrtc/lib/libnvrtc.so.12")]
    for path in paths:
        path.parent.mkdir(parents=True)
        path.touch()
        path.with_name("libnvrtc-builtins.so.13.0").touch()
    monkeypatch.syspath_prepend(tmp_path)
    paths = list(map(str, paths))
    assert [path for path in library._candidates() if path in paths] == paths
    (tmp_path / "jax_cuda12_plugin.py").touch()
    importlib.invalidate_caches()
    assert [path for path in library._candidates() if path in paths] == paths[::-1]
