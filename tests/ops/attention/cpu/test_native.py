"""The compiled kernel for CPUs: the suite of every implementation, and what it alone has to do with its compiler."""

import logging
import math
import stat
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AxisType, PartitionSpec

from posattn_jax.ops.attention import kernel as kernels
from posattn_jax.ops.attention import operation, relative_attention, score_share, select
from posattn_jax.ops.attention.cpu import kernel, library
from posattn_jax.system import compiler
from posattn_jax.system.compat import enable_x64
from posattn_jax.system.files import cache_folder
from tests.ops.attention.attention_suite import LocalSuite, make_inputs
from tests.support.command import ROOT, environment
from tests.support.compiler import needs_compiler
from tests.support.slow import slow

pytestmark = needs_compiler


def test_where_there_is_a_compiler_there_is_a_kernel(float64):
    """So that no failure of its check skips the tests of this file: they run wherever there is a compiler."""
    assert kernel.missing_here(jnp.float64) is None
    assert kernel.missing_here(jnp.float32) is None


@pytest.mark.parametrize("first, second", [("float64", "float32"), slow("float32", "float64")])
def test_the_libraries_of_two_dtypes_share_nothing(first, second):
    """In one process, whichever is loaded first. A grid of 9 leaves keys beyond the last whole vector of both."""
    call = f"""
import jax, numpy as np
from posattn_jax import relative_attention
jax.config.update("jax_enable_x64", True)
for dtype in ("{first}", "{second}"):
    q, k, v = np.random.default_rng(0).normal(size=(3, 1, 9, 2, 5)).astype(dtype)
    found, expected = (
        relative_attention(q, k, v, grid_shape=(9,), implementation=name) for name in ("native", "reference")
    )
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected, atol=1e-5)
"""
    done = subprocess.run([sys.executable, "-c", call], cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


class TestNative(LocalSuite):
    implementation = "native"


@pytest.mark.parametrize(
    "grid_shape, options",
    [
        ((11, 70), {"is_causal": True}),
        slow((300,), {"span_mode": "log_add"}),
        slow((300,), {"threshold": 0.0, "is_causal": True}),
        slow((70, 3), {}),
        slow((11, 70), {"is_causal": (True, False)}),
        slow((3, 11, 40), {"is_causal": (False, True, True)}),
        slow((2, 3, 20), {"is_causal": True}),
        slow((6, 5, 4), {"threshold": 0.4}),
    ],
    ids=str,
)
@pytest.mark.parametrize("span", ["per head", slow("full"), slow("none")])
def test_many_tiles(float64, grid_shape, options, span):
    """More queries than are met at once, and rows of keys that are cut; spans of several sizes, and a padded batch."""
    check_against("reference", grid_shape, options, span)


@pytest.mark.parametrize("grid_shape, is_causal", [((300,), False), slow((300,), True), slow((11, 70), False)])
@pytest.mark.parametrize("ids", ["packed", slow("apart")])
def test_segments_of_many_tiles(float64, grid_shape, is_causal, ids):
    n, rng = math.prod(grid_shape), np.random.default_rng(5)
    segment_ids = rng.integers(5, size=(2, n))
    options = {"segment_ids": jnp.asarray(np.sort(segment_ids) if ids == "packed" else segment_ids, jnp.int32)}
    check_against("reference", grid_shape, options | {"is_causal": is_causal}, "none")


def make_heads(n):
    rng = np.random.default_rng(6)
    arrays = {name: rng.normal(size=(2, n, 2, 4)) for name in ("query", "key", "value")}
    return {name: x.astype(np.float32) for name, x in arrays.items()}


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_other_heads_are_the_same_bits_if_one_is_not_finite(number):
    """One thread computes both, the second with a shorter span."""
    inputs = make_heads(67) | {"relative_encoding": np.ones((133, 2, 4), np.float32)}
    sigma = jnp.array([[0.5], [0.02]])

    @jax.jit
    def outputs_and_gradients(x):
        outputs, pull_back = jax.vjp(
            lambda x: relative_attention(**x, grid_shape=(67,), sigma=sigma, implementation="native"), x
        )
        return outputs, pull_back(jnp.cos(outputs))[0]

    expected = outputs_and_gradients(inputs)
    inputs["query"][:, :, 0] = number
    found = outputs_and_gradients(inputs)
    assert not np.isfinite(found[0][:, :, 0]).any()
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x[:, 1], y[:, 1]) if x.ndim == 3 else None, found, expected)
    np.testing.assert_array_equal(found[0][:, :, 1], expected[0][:, :, 1])
    np.testing.assert_array_equal(found[1]["query"][:, :, 1], expected[1]["query"][:, :, 1])


@pytest.mark.parametrize("bits", [0x7FC00000, 0x7FC00001, 0x7FC000FF, 0xFFC00080], ids=hex)
def test_nan_of_any_bits_reaches_the_outputs(bits):
    inputs = make_heads(9)
    inputs["query"].view(np.uint32)[0, 3, 1] = bits
    outputs = relative_attention(**inputs, grid_shape=(9,), implementation="native")
    is_nan = np.zeros(outputs.shape, bool)
    is_nan[0, 3, 1] = True
    np.testing.assert_array_equal(np.isnan(outputs), is_nan)


@pytest.mark.parametrize("bias", [88.9, 266.5, 1e9])
def test_a_row_that_ends_within_a_tile_has_gradients_whatever_is_added(bias):
    """The tile's queries beyond the row have logits too, of which the exponential may be infinite."""
    inputs = make_heads(13) | {"relative_bias": np.full((25, 2), bias, np.float32)}

    def gradients(implementation):
        return jax.jit(
            jax.grad(lambda x: (relative_attention(**x, grid_shape=(13,), implementation=implementation) ** 2).sum())
        )(inputs)

    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5),
        *map(gradients, ("native", "reference")),
    )


def test_segment_ids_of_64_bits(float64):
    """They differ only in the upper half."""
    ids = jnp.broadcast_to(jnp.arange(9) % 3 << 32, (2, 9))
    outputs = [
        relative_attention(**make_heads(9), grid_shape=(9,), segment_ids=ids, implementation=name)
        for name in ("native", "reference")
    ]
    np.testing.assert_allclose(*outputs, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_narrow_registers(float64, monkeypatch, tmp_path):
    """The kernel of a CPU with 16 vector registers, whose tiles are half as long."""
    if "avx512vl" not in library._cpu():
        pytest.skip("this CPU has no wider registers")
    fresh(monkeypatch, tmp_path)
    monkeypatch.setattr(library, "OPTIONS", [*library.OPTIONS, "-march=x86-64-v3"])
    monkeypatch.setattr(library, "target", lambda function, dtype: f"narrow_{function}_{dtype}")
    check_against("reference", (5, 37), {"is_causal": True}, "per head")
    assert len(list(tmp_path.glob("posattn_jax/*.so"))) == 1


def check_against(implementation, grid_shape, options, span, given="native"):
    """Values and gradients of both, with every part."""
    inputs = make_inputs(grid_shape, span != "none", span == "per head", "full" if span == "full" else "diagonal")
    rng = np.random.default_rng(4)
    n, offsets = math.prod(grid_shape), [2 * size - 1 for size in grid_shape]
    inputs["relative_bias"] = rng.normal(size=(*offsets, 2))
    inputs = jax.tree.map(jnp.asarray, inputs)
    mask, weights = jnp.asarray(rng.random((2, n)) < 0.8), rng.normal(size=inputs["value"].shape)

    def results(implementation):
        def loss(x):
            outputs = relative_attention(
                **x, grid_shape=grid_shape, key_mask=mask, implementation=implementation, **options
            )
            return (weights * outputs).sum(), outputs

        return jax.jit(jax.grad(loss, has_aux=True))(inputs)

    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9), *map(results, (given, implementation))
    )


def attend(x, implementation="native") -> Any:
    return relative_attention(**x, grid_shape=(3, 4), implementation=implementation)


@pytest.fixture
def inputs():
    return jax.tree.map(jnp.asarray, make_inputs((3, 4), dtype=np.float32))


def test_mapped(inputs):
    """Seeds with arrays of their own, inside and outside of a gradient."""
    seeds = [jax.tree.map(jnp.asarray, make_inputs((3, 4), dtype=np.float32, seed=seed)) for seed in range(3)]
    seeds = [seed | {"query": inputs["query"]} for seed in seeds]
    stacked = jax.tree.map(lambda *xs: jnp.stack(xs), *seeds)
    axes = {name: None if name == "query" else 0 for name in stacked}
    stacked["query"] = inputs["query"]
    gradient = jax.grad(lambda x: (attend(x) ** 2).sum())
    outputs = jax.jit(jax.vmap(gradient, (axes,)))(stacked)
    for i, seed in enumerate(seeds):
        expected = jax.jit(gradient)(seed)
        jax.tree.map(lambda x, y, i=i: np.testing.assert_allclose(x[i], y, rtol=1e-5, atol=1e-6), outputs, expected)


def test_without_jit_it_is_compiled_once(inputs):
    first = attend(inputs)
    before = operation._jitted.cache_info()
    np.testing.assert_array_equal(attend(inputs), first)
    after = operation._jitted.cache_info()
    assert after.misses == before.misses and after.hits > before.hits


def test_no_other_platform_and_no_exported_program_has_it(inputs):
    function = jax.jit(jax.grad(lambda x: attend(x).sum()))
    target, exported = library.target("backward", "float32"), export.export(function)(inputs)
    assert target in function.lower(inputs).as_text()
    assert target not in exported.mlir_module()
    assert target not in function.trace(inputs).lower(lowering_platforms=("cuda",)).as_text()
    called = export.deserialize(exported.serialize()).call(inputs)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), called, function(inputs))


def test_auto_is_native_on_cpus(monkeypatch):
    inputs = jax.tree.map(jnp.asarray, make_inputs((2, 6), dtype=np.float32))

    def is_native(**options):
        jaxpr = jax.make_jaxpr(lambda x: relative_attention(**x, grid_shape=(2, 6), **options))(inputs)
        return "attention_forward" in str(jaxpr)

    assert is_native() and is_native(is_causal=True)
    with monkeypatch.context() as patch:
        patch.setattr(jax, "process_count", lambda: 2)
        assert not is_native()
    assert not is_native(return_weights=True)
    assert not is_native(dropout_rate=0.1, dropout_rng=jax.random.key(0))
    assert score_share((16, 16), (2, 2)) == score_share((16, 16), (2, 2), implementation="native")
    assert select.native_pays((4, 6), None) and select.native_pays((4, 4, 4), (1, 1, 0))
    assert not select.native_pays((4, 4, 4), None) and not select.native_pays((50, 4), (49, 3))
    assert select.native_pays((50, 4), None)  # a span that is known at run time
    monkeypatch.setattr(select.native, "missing_here", lambda dtype=None: "anything")
    assert not is_native()


def test_pairs():
    assert kernel.pairs((1,), (0,)) == 64  # a tile and a vector
    assert kernel.pairs((8,), (2,)) == 64
    assert kernel.pairs((16, 16), (1, 2)) == (16 * 3 - 2) * 2 * 16 * 8
    assert score_share((16, 16), (15, 15), implementation="native") == 1


def fresh(monkeypatch, folder):
    """As in a new process whose cache is `folder`."""
    monkeypatch.setattr(library, "_obstacles", {})
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))


@pytest.mark.parametrize(
    "variable, value, reason",
    [
        ("CXX", "/no/compiler", "no C++ compiler is found (/no/compiler)"),
        ("CXX", "false", "non-zero exit status"),
        ("POSATTN_NATIVE", "0", "POSATTN_NATIVE=0"),
    ],
)
def test_without_a_compiler_a_line_says_so_once(inputs, monkeypatch, tmp_path, caplog, variable, value, reason):
    fresh(monkeypatch, tmp_path)
    monkeypatch.setenv(variable, value)
    outputs = [jax.jit(lambda x: attend(x, "auto"))(inputs) for _ in range(2)]
    expected = jax.jit(lambda x: attend(x, "reference"))(inputs)
    np.testing.assert_allclose(outputs[0], expected, rtol=1e-4, atol=1e-5)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and reason in record.message
    with pytest.raises(ValueError, match='implementation="native" .*CPU'):
        attend(inputs)


def test_a_compiler_that_fails(monkeypatch, tmp_path):
    fresh(monkeypatch, tmp_path)
    monkeypatch.setenv(
        "CXX", script(tmp_path, 'test "$1" = --version && exit; echo "kernel.cc:1: error: no" >&2; exit 1')
    )
    assert kernel.missing_here().endswith("kernel.cc:1: error: no)")
    assert not list(tmp_path.glob("posattn_jax/*"))


def test_after_an_interrupt_it_is_tried_again(monkeypatch):
    monkeypatch.setattr(library, "_obstacles", {})

    def interrupted(path, dtype):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(library, "_register", interrupted)
        kernel.missing_here()
    assert not library._obstacles
    assert kernel.missing_here() is None


def test_a_kept_library_that_is_cut_short_is_made_anew(monkeypatch, tmp_path):
    kernel.missing_here()
    whole, options = next(cache_folder().glob("cpu-*.so")), ([], "", ())
    fresh(monkeypatch, tmp_path)
    monkeypatch.setenv(
        "CXX", script(tmp_path, f'test "$1" = --version && exit; while test $# -gt 1; do shift; done; cp {whole} $1')
    )

    def is_new():
        with compiler.shared_library(library.SOURCES / "kernel.cc", *options) as (_, found):
            return found

    assert is_new()
    (path,) = tmp_path.glob("posattn_jax/*.so")
    path.write_bytes(path.read_bytes()[:1000])
    assert is_new() and not is_new()


def test_checked_where_float64_is_allowed_in_one_thread_alone():
    with enable_x64(True):
        assert kernel.missing_here(jnp.float64) is None
        kernel._check("float64")


@pytest.mark.slow
def test_a_kernel_that_is_wrong_is_not_kept(monkeypatch, tmp_path):
    """The compiler gives the right one, but what checks it does not hold."""
    kept = next(cache_folder().glob("cpu-*.so"))
    fresh(monkeypatch, tmp_path)
    monkeypatch.setenv(
        "CXX", script(tmp_path, f'test "$1" = --version && exit; while test $# -gt 1; do shift; done; cp {kept} $1')
    )
    monkeypatch.setattr(jax.ffi, "register_ffi_target", lambda *arguments, **options: None)  # they are there
    assert kernel.missing_here() is None
    assert len(list(tmp_path.glob("posattn_jax/*.so"))) == 1
    fresh(monkeypatch, tmp_path / "other")
    monkeypatch.setattr(kernels, "reference_attention", lambda problem: (problem.value, None))
    assert "the compiled kernel is not right" in kernel.missing_here() and "outputs by " in kernel.missing_here()
    assert not list((tmp_path / "other").glob("posattn_jax/*"))


@pytest.mark.slow
def test_checked_while_a_program_of_several_devices_is_traced():
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:4])

    def traced(x):
        kernel._check("float32")
        return x

    with jax.set_mesh(mesh):
        jax.eval_shape(jax.shard_map(traced, in_specs=PartitionSpec(), out_specs=PartitionSpec()), jnp.ones(4))


def script(folder, text):
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)
