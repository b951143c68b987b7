"""The fused kernels for TPUs: interpreted as every implementation, and lowered with no TPU at hand."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from posattn_jax.ops.attention import api, relative_attention
from posattn_jax.ops.attention.arguments import Block
from posattn_jax.ops.attention.tpu.fused import FusedTpu
from posattn_jax.ops.attention.tpu.plan import Plan, Tile
from posattn_jax.ops.attention.xla.dense import RowLoop
from posattn_jax.ops.attention.xla.loop import run_loops
from tests.ops.attention import attention_suite
from tests.ops.attention.attention_suite import B, FusedTpuSuite, make_inputs
from tests.support.slow import slow


@pytest.fixture(autouse=True)
def in_the_place_of_tiled(monkeypatch):
    """Small tiles, so that there are many of them on small grids."""
    options = {"interpret": True, "plan": Plan(2, Tile(4, 8)), "step": 1, "limit": 8}
    monkeypatch.setitem(
        api.IMPLEMENTATIONS, "tiled", lambda problem: run_loops(problem, [FusedTpu(problem, **options)], RowLoop)
    )
    return options


class TestFusedTpu(FusedTpuSuite):
    implementation = "tiled"  # whose place it takes
    pytestmark = pytest.mark.slow  # each case compiles four kernels; the tests below have some of it


def test_a_grid_cut_over_devices_is_refused(monkeypatch):
    def cut(problem):
        return FusedTpu(dataclasses.replace(problem, block=Block(rows=4, whole=(4,), start=0, first=0)))

    monkeypatch.setitem(api.IMPLEMENTATIONS, "tiled", cut)
    with pytest.raises(ValueError, match="a grid that is cut over devices"):
        TestFusedTpu().attend(make_inputs((4,), dtype=np.float32), (4,), span_bound=(3,))


@pytest.mark.parametrize(
    "grid_shape, covariance",
    [
        slow((21,), "diagonal"),
        slow((3, 9), "diagonal"),
        slow((7, 2), "full"),
        slow((2, 2, 6), "full"),
        slow((2, 3, 2), "diagonal"),
    ],
    ids=str,
)
def test_many_chunks(float64, grid_shape, covariance):
    """Lines of rows and of planes, cut into chunks, with spans that end within them, or at heads of their own."""
    mask = np.random.default_rng(2).random((B, math.prod(grid_shape))) < 0.6
    inputs = make_inputs(grid_shape, per_head=True, covariance=covariance)
    inputs["relative_bias"] = np.random.default_rng(3).normal(size=inputs["relative_encoding"].shape[:-1])
    TestFusedTpu().check_against_oracle(inputs, grid_shape, is_causal=True, key_mask=mask, span_mode="log_add")
    TestFusedTpu().check_against_oracle(inputs, grid_shape, threshold=0.4)


@pytest.mark.parametrize("num_heads, lanes", [(3, 16), slow(3, 4), slow(5, 8)], ids=str)
def test_heads_that_share_registers(float64, in_the_place_of_tiled, monkeypatch, num_heads, lanes):
    """A group that is not full, a head with registers of its own, and a last group with fewer heads."""
    in_the_place_of_tiled["lanes"] = lanes
    monkeypatch.setattr(attention_suite, "H", num_heads)
    inputs = make_inputs((3, 5), per_head=True)
    TestFusedTpu().check_against_oracle(inputs, (3, 5), threshold=0.4)


@pytest.mark.slow
@pytest.mark.parametrize("grid_shape", [(21,), slow((7, 5)), slow((2, 2, 6))], ids=str)
def test_encodings_that_do_not_fit(float64, in_the_place_of_tiled, grid_shape):
    """Without room for the cotangents of all encodings of a head, a kernel of its own computes them."""
    in_the_place_of_tiled.pop("limit")
    in_the_place_of_tiled["room"] = 0
    TestFusedTpu().check_against_oracle(make_inputs(grid_shape, per_head=True), grid_shape, threshold=0.4)


@pytest.mark.slow
@pytest.mark.parametrize("grid_shape", [(300,), (10, 30), (2, 3, 150)], ids=str)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["float32", "bfloat16"])
def test_whole_tiles(in_the_place_of_tiled, grid_shape, dtype):
    """Tiles as they are on a TPU; values and gradients against those of implementation "dense" in float32.

    In the gradient of a bias, terms of all queries nearly cancel. In bfloat16 it may be off by twice as much as in
    "dense", if that is more than 3 %. XLA compiles an interpreted kernel by calls as deep as it has tiles, on a thread
    of its own: twice as many rows overflow its stack.
    """
    in_the_place_of_tiled.clear()
    in_the_place_of_tiled["interpret"] = True
    inputs = jax.tree.map(jnp.asarray, make_inputs(grid_shape, dtype=np.float32, per_head=True))
    rounded = {name: x.astype(dtype).astype(x.dtype) if name != "sigma" else x for name, x in inputs.items()}
    cotangent = jax.random.normal(jax.random.key(0), inputs["value"].shape)

    def evaluate(x, implementation):
        def attend(x):
            return relative_attention(**x, grid_shape=grid_shape, implementation=implementation)

        outputs, pull = jax.vjp(attend, x)
        return outputs, pull(cotangent.astype(outputs.dtype))[0]

    expected = jax.jit(functools.partial(evaluate, implementation="dense"))(rounded)
    lower = {name: x.astype(dtype) if name != "sigma" else x for name, x in rounded.items()}
    got = jax.jit(functools.partial(evaluate, implementation="tiled"))(lower)
    dense = jax.jit(functools.partial(evaluate, implementation="dense"))(lower)
    tolerance = 1e-4 if dtype == jnp.float32 else 0.03
    for array, exact, own in zip(*map(jax.tree.leaves, (got, expected, dense)), strict=True):
        allowed = max(tolerance * float(abs(exact).max()), 2 * float(abs(own.astype(jnp.float32) - exact).max()))
        np.testing.assert_allclose(array.astype(jnp.float32), exact, rtol=0, atol=allowed)


@pytest.mark.slow
def test_one_program_serves_every_span():
    shape = (7, 5)
    inputs = jax.tree.map(jnp.asarray, make_inputs(shape, dtype=np.float32))
    forward = jax.jit(lambda x: relative_attention(**x, grid_shape=shape, implementation="tiled"))
    backward = jax.jit(jax.grad(lambda x: (forward(x) ** 2).sum()))
    expected = jax.jit(lambda x: relative_attention(**x, grid_shape=shape, implementation="dense"))
    expected_gradient = jax.jit(jax.grad(lambda x: (expected(x) ** 2).sum()))
    for sigma in ((0.02, 0.03), (0.05, 0.3), (0.2, 0.1), (1.0, 1.0)):
        x = inputs | {"sigma": jnp.array(sigma)}
        np.testing.assert_allclose(forward(x), expected(x), rtol=1e-4, atol=1e-5)
        gradients, expected_gradients = backward(x), expected_gradient(x)
        for name, gradient in gradients.items():
            np.testing.assert_allclose(gradient, expected_gradients[name], rtol=1e-3, atol=1e-4, err_msg=name)
    assert forward._cache_size() == backward._cache_size() == 1


def lowered(grid_shape, head_dim, dtype, left_out=(), **options):
    """The modules of the forward and the backward pass for TPUs, with sigma traced."""
    n, h = math.prod(grid_shape), 2
    offsets = (*(2 * size - 1 for size in grid_shape), h)
    shapes = {"query": (1, n, h, head_dim), "key": (1, n, h, head_dim), "value": (1, n, h, head_dim)}
    shapes |= {"relative_encoding": (*offsets, head_dim), "content_bias": (h, head_dim), "position_bias": (h, head_dim)}
    x = {name: jax.ShapeDtypeStruct(shape, dtype) for name, shape in (shapes | {"relative_bias": offsets}).items()}
    x["sigma"] = jax.ShapeDtypeStruct((h, len(grid_shape)), jnp.float32)
    x = {name: shape for name, shape in x.items() if name not in left_out}

    def forward(x):
        return relative_attention(**({"key": None} | x), grid_shape=grid_shape, implementation="tiled", **options)

    def backward(x):
        return jax.grad(lambda x: forward(x).astype(jnp.float32).sum())(x)

    return [export.export(jax.jit(f), platforms=["tpu"])(x).mlir_module() for f in (forward, backward)]


@pytest.mark.parametrize(
    "grid_shape, head_dim, dtype, options, launches",
    [
        ((32, 32), 64, jnp.bfloat16, {}, 2),
        slow((32, 32), 64, jnp.float32, {"is_causal": True}, 2),
        slow((500,), 8, jnp.float32, {"span_mode": "log_add"}, 2),
        slow((5000,), 128, jnp.bfloat16, {"is_causal": True}, 3),
        slow((5000,), 128, jnp.bfloat16, {"span_bound": (100,)}, 2),
        slow((256, 256), 32, jnp.float32, {}, 3),
        slow((8, 16, 12), 128, jnp.float32, {}, 3),
        slow((3, 5, 70), 8, jnp.bfloat16, {}, 3),
        slow((7,), 64, jnp.float32, {"left_out": ("key", "content_bias")}, 2),
        slow((7, 7), 64, jnp.float32, {"left_out": ("relative_encoding", "position_bias")}, 2),
        slow((7, 7), 32, jnp.bfloat16, {"left_out": ("relative_encoding", "position_bias", "relative_bias")}, 2),
        slow((7, 7), 32, jnp.float32, {"left_out": ("sigma",)}, 2),
    ],
    ids=str,
)
def test_lowers_for_tpus(in_the_place_of_tiled, grid_shape, head_dim, dtype, options, launches):
    """One launch forward. Backward a third one computes the encodings if they do not fit next to the queries."""
    in_the_place_of_tiled.clear()
    forward, backward = lowered(grid_shape, head_dim, dtype, **options)
    assert forward.count("@tpu_custom_call") == 1
    assert backward.count("@tpu_custom_call") == 1 + launches
