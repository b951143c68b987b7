"""What "auto" is lowered to on accelerators where neither a span nor vectors are asked for."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from jax.experimental.pallas import tpu as pltpu

from posattn_jax.ops.attention import Problem, platform, relative_attention
from posattn_jax.ops.attention.xla.reference import reference_attention
from tests.ops.attention.attention_suite import make_inputs
from tests.support.slow import slow

N = 256
CASES = {
    "contents": {},
    "causal": {"is_causal": True},
    "padded": {"key_mask": np.ones((2, N), bool)},
    "biased": {"relative_bias": np.ones((2 * N - 1, 2), np.float32)},
    "span": {"sigma": np.ones(1, np.float32)},
    "vectors": {"relative_encoding": np.ones((2 * N - 1, 2, 64), np.float32)},
    "weights": {"return_weights": True},
}


@pytest.fixture
def cuda(monkeypatch):
    """As with a GPU and cuDNN, as far as lowering asks."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91200)
    monkeypatch.setattr(cudnn, "check_compute_capability", lambda _: True)
    monkeypatch.setattr(cudnn, "is_cuda_compute_capability_equal", lambda _: False)


def kernels(platform, dtype=jnp.bfloat16, n=N, d=64, **options):
    """The calls in the program of a gradient."""
    arrays = {
        name: jnp.asarray(x, dtype if x.dtype == np.float32 and name != "sigma" else x.dtype)
        for name, x in options.items()
        if isinstance(x, np.ndarray)
    }

    def loss(x):
        outputs = relative_attention(x, x, x, grid_shape=(n,), **(options | arrays))
        return jax.tree.leaves(outputs)[0].astype(jnp.float32).sum()

    program = jax.jit(jax.grad(loss)).trace(jax.ShapeDtypeStruct((2, n, 2, d), dtype))
    return set(re.findall(r"custom_call @([\w$]+)", program.lower(lowering_platforms=(platform,)).as_text()))


@pytest.mark.parametrize("case", [slow(case) if case in ("causal", "weights") else case for case in CASES])
def test_on_a_gpu(cuda, case):
    taken = case in ("contents", "causal", "padded", "biased")
    found = {name for name in kernels("cuda", **CASES[case]) if "cudnn" in name}
    assert {name.endswith("Backward") for name in found} == ({False, True} if taken else set())


def test_what_cudnn_does_not_take_is_dense(cuda, monkeypatch):
    assert not kernels("cuda", dtype=jnp.float32)
    assert not kernels("cuda", d=12)
    assert not kernels("cuda", n=255)
    monkeypatch.setattr(platform, "ACCELERATOR_SCORE_BYTES", N * N * 4 - 1)
    assert kernels("cuda") and not kernels("cuda", **CASES["biased"])
    monkeypatch.undo()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")  # without cuDNN
    assert not kernels("cuda")


@pytest.mark.parametrize("case", [slow(case) if case in ("contents", "weights") else case for case in CASES])
def test_on_a_tpu(monkeypatch, case):
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    assert "tpu_custom_call" not in kernels("tpu", **CASES[case])  # on several devices
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    taken = case in ("contents", "causal", "padded")
    assert ("tpu_custom_call" in kernels("tpu", **CASES[case])) == taken


def test_positions_that_are_no_whole_blocks(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    assert "tpu_custom_call" not in kernels("tpu", n=130)


@pytest.mark.parametrize(
    "options, dtype",
    [
        ({"key_mask": True}, jnp.float16),
        ({"is_causal": True}, jnp.float32),
        *(slow({}, dtype) for dtype in (jnp.float16, jnp.float32)),
        slow({"key_mask": True}, jnp.float32),
        slow({"is_causal": True}, jnp.float16),
    ],
    ids=str,
)
def test_a_relative_bias_that_hides(monkeypatch, options, dtype):
    """With the arguments that cuDNN is called with: a query that sees nothing has outputs and gradients of 0."""
    called = jax.nn.dot_product_attention

    def by_xla(*args, implementation, **given):
        assert implementation == "cudnn"
        return called(*args, **given)

    monkeypatch.setattr(jax.nn, "dot_product_attention", by_xla)
    inputs = make_inputs((8,), span=False, dtype=np.float32)
    arrays = {name: jnp.asarray(inputs[name], dtype) for name in ("query", "key", "value")}
    hidden = np.random.default_rng(2).random((15, 2)) < 0.4
    hidden[:9, 0] = True  # the last query sees nothing
    options = options | {"relative_bias": jnp.where(hidden, -jnp.inf, 0.5).astype(dtype)}
    if "key_mask" in options:
        options["key_mask"] = jnp.arange(8) < jnp.array([[8], [6]])

    def results(implementation):
        def total(arrays):
            outputs = implementation(Problem(**arrays, grid_shape=(8,), **options).settled())[0]
            return jnp.sin(outputs.astype(jnp.float32)).sum(), outputs

        return jax.tree.map(lambda x: x.astype(jnp.float32), jax.grad(total, has_aux=True)(arrays))

    tolerance = 1e-5 if dtype == jnp.float32 else 0.02
    check = functools.partial(np.testing.assert_allclose, rtol=tolerance, atol=tolerance)
    jax.tree.map(check, results(platform.platform_attention), results(reference_attention))


@pytest.mark.parametrize("is_causal", [slow(False), True])
def test_values_on_a_tpu(monkeypatch, is_causal):
    """The interpreter's, with a batch whose keys are all masked and one whose first are."""
    inputs = make_inputs((128,), span=False, dtype=np.float32)
    arrays = {name: jnp.asarray(inputs[name]) for name in ("query", "key", "value", "content_bias")}
    mask = jnp.ones((2, 128), bool).at[0].set(False).at[1, :40].set(False)
    options = {"grid_shape": (128,), "key_mask": mask, "is_causal": is_causal}
    expected = relative_attention(**arrays, **options, implementation="reference")
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    with pltpu.force_tpu_interpret_mode():
        outputs, _ = platform.platform_attention(Problem(**arrays, **options))
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5)
    assert not outputs[0].any() and outputs[1].any()
