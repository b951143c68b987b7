"""Depthwise convolutions against loops over scalars, as computed on this machine and as elsewhere."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax.ops import depthwise
from posattn_jax.ops.depthwise import depthwise_convolution
from tests import oracle
from tests.support.slow import slow


def after(t, s, is_causal):
    """Whether place s lies after t: in row-major order, or in a causal dimension."""
    if is_causal is True:
        return s > t
    return bool(is_causal) and any(b > a for a, b, causal in zip(t, s, is_causal, strict=True) if causal)


@pytest.mark.parametrize(
    "form, unrolled",
    [(depthwise_convolution, 64), (depthwise_convolution, 1), (depthwise.by_xla, None)],
    ids=["laid out", "a loop", "elsewhere"],
)
@pytest.mark.parametrize(
    "grid_shape, kernel_shape, is_causal",
    [
        ((5,), (3,), False),
        ((2, 3), (5, 1), False),
        ((2, 1, 3), (3, 1, 5), False),
        ((3, 2), (3, 3), True),
        ((2, 3), (3, 5), (False, True)),
        slow((1,), (5,), False),
        slow((3, 2), (3, 3), False),
        slow((5,), (5,), True),
        slow((2, 3), (1, 3), True),
        slow((2, 2, 2), (3, 3, 3), (True, False, True)),
    ],
    ids=str,
)
def test_values_and_gradients(float64, monkeypatch, grid_shape, kernel_shape, is_causal, form, unrolled):
    monkeypatch.setattr(depthwise, "MAX_UNROLLED", unrolled)
    rng = np.random.default_rng(0)
    given = {"inputs": rng.normal(size=(2, *grid_shape, 2)), "kernel": rng.normal(size=(*kernel_shape, 2))}
    mixed = rng.normal(size=given["inputs"].shape)

    def convolved(given):
        outputs = np.zeros(given["inputs"].shape, complex)
        where = oracle.positions(grid_shape)
        for t in where:
            for s in where:
                entry = tuple(b - a + size // 2 for a, b, size in zip(t, s, kernel_shape, strict=True))
                if after(t, s, is_causal):
                    continue
                if all(0 <= e < size for e, size in zip(entry, kernel_shape, strict=True)):
                    outputs[(slice(None), *t)] += given["inputs"][(slice(None), *s)] * given["kernel"][entry]
        return mixed[..., None] * outputs

    expected, expected_gradients = oracle.value_and_gradients(convolved, given)

    def total(given):
        outputs = mixed * form(**given, is_causal=is_causal)
        return outputs.sum(), outputs

    gradients, outputs = jax.jit(jax.grad(total, has_aux=True))(given)
    np.testing.assert_allclose(outputs, expected, rtol=1e-12, atol=1e-12)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, expected_gradients[name], rtol=1e-12, atol=1e-12, err_msg=name)


def test_sums_in_float32():
    """256 + 1 + ... + 1 of bfloat16 would stay 256."""
    inputs = jnp.ones((1, 9, 1), jnp.bfloat16).at[0, 0].set(256)
    outputs = depthwise_convolution(inputs, jnp.ones((17, 1), jnp.bfloat16))
    assert outputs.dtype == jnp.bfloat16
    np.testing.assert_array_equal(outputs, jnp.full((1, 9, 1), 264, jnp.bfloat16))
