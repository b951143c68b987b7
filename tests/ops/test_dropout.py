"""Dropout from random bytes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax.nn.layers import Dropout
from posattn_jax.ops.dropout import dropout, dropped_levels
from tests.support.slow import slow


@pytest.mark.parametrize(
    "rate, levels", [(0.0, 0), (1e-6, 1), (0.1, 26), (0.25, 64), (0.5, 128), (0.9999, 255), (1.0, 256)]
)
def test_the_rate_is_rounded_to_a_256th(rate, levels):
    assert dropped_levels(rate) == levels


@pytest.mark.parametrize(
    "last, rate", [(1, 0.1), (3, 0.5), (4, 0.1), (130, 0.1), slow(1, 0.5), slow(3, 0.1), slow(4, 0.5), slow(130, 0.5)]
)
def test_share_and_mean(rate, last):
    """Within five standard errors, along every place of a word."""
    n = 40000
    inputs = jnp.full((n, last), 2.0)
    outputs = np.asarray(jax.jit(lambda rng: dropout(inputs, rng, rate))(jax.random.key(0)))
    share = dropped_levels(rate) / 256
    kept = outputs != 0
    np.testing.assert_allclose(outputs[kept], 2 / (1 - share), rtol=1e-6)
    error = np.sqrt(share * (1 - share) / n)
    assert (abs((~kept).mean(0) - share) < 5 * error).all()
    if last > 1:  # neighbours, of one word too, are dropped independently
        both = (~kept[:, :-1] & ~kept[:, 1:]).mean(0)
        assert (abs(both - share**2) < 5 * share / np.sqrt(n)).all()


def test_ends_of_the_range():
    inputs = jnp.arange(1.0, 5.0)
    np.testing.assert_array_equal(dropout(inputs, jax.random.key(0), 0.0), inputs)
    np.testing.assert_array_equal(dropout(inputs, jax.random.key(0), 1.0), 0)


def test_gradient_is_the_mask():
    inputs = jnp.ones((5, 6))
    outputs, gradient = jax.value_and_grad(lambda x: dropout(x, jax.random.key(1), 0.5).sum())(inputs)
    assert outputs == gradient.sum()
    assert set(np.unique(gradient)) == {0.0, 2.0}


def test_module():
    """Off where it is deterministic; half precision stays half."""
    inputs = jnp.ones((8, 16), jnp.bfloat16)
    module = Dropout(0.5)
    np.testing.assert_array_equal(module.apply({}, inputs, deterministic=True), inputs)
    outputs = module.apply({}, inputs, deterministic=False, rngs={"dropout": jax.random.key(0)})
    assert outputs.dtype == jnp.bfloat16
    assert 0 < (np.asarray(outputs) == 0).mean() < 1
