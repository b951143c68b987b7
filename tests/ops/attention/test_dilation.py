"""Attention at whole steps: against the oracle's loops in every implementation; NATTEN's is in test_definitions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax.ops.attention import relative_attention
from tests import oracle
from tests.ops.attention.attention_suite import make_inputs
from tests.support.slow import slow

IMPLEMENTATIONS = ["dense", "native", "tiled", slow("reference"), slow("auto")]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    "grid_shape, dilation, options",
    [
        ((5, 3), (2, 3), {"threshold": 0.1}),
        slow((7,), (3,), {"is_causal": True, "span_mode": "log_add"}),
        slow((6,), (2,), {"threshold": 0.0, "reference_shape": (4,)}),
        slow((2, 3, 2), (2, 1, 5), {"is_causal": (False, True, False)}),
        slow((3, 3), (1, 1), {}),
    ],
    ids=str,
)
def test_values_and_gradients(float64, implementation, grid_shape, dilation, options):
    covariance = "full" if len(grid_shape) == 2 else "diagonal"
    inputs = make_inputs(grid_shape, covariance=covariance, batch=1)
    inputs["relative_bias"] = np.random.default_rng(1).normal(size=(*(2 * size - 1 for size in grid_shape), 2))
    weights = np.random.default_rng(2).normal(size=inputs["value"].shape)
    options = options | {"dilation": dilation}

    def weighted(x):
        return weights[..., None] * oracle.attention(x, grid_shape, **options)

    def loss(x):
        outputs = relative_attention(**x, grid_shape=grid_shape, implementation=implementation, **options)
        return (weights * outputs).sum(), weights * outputs

    expected, expected_gradients = oracle.value_and_gradients(weighted, inputs)
    gradients, outputs = jax.jit(jax.grad(loss, has_aux=True))(jax.tree.map(jnp.asarray, inputs))
    np.testing.assert_allclose(outputs, expected, rtol=1e-10, atol=1e-10)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, expected_gradients[name], rtol=1e-10, atol=1e-10, err_msg=name)


@pytest.mark.parametrize("dilation", [(2,), (0, 1)], ids=str)
def test_steps_that_do_not_fit(dilation):
    x = jnp.ones((1, 6, 1, 2))
    with pytest.raises(ValueError, match=r"dilation=.* 2 steps"):
        relative_attention(x, x, x, grid_shape=(3, 2), dilation=dilation)


def test_pairs_have_no_coarse_grid():
    x = jnp.ones((1, 6, 1, 2))
    with pytest.raises(ValueError, match=r"dilation=\(2, 1\) does not support mask"):
        relative_attention(x, x, x, grid_shape=(3, 2), dilation=(2, 1), mask=jnp.ones((1, 1, 6, 6), bool))
    with pytest.raises(ValueError, match=r"dilation=\(2, 1\) .*return_weights"):
        relative_attention(x, x, x, grid_shape=(3, 2), dilation=(2, 1), return_weights=True)
