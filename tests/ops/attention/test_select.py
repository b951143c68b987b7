from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax.ops.attention import relative_attention, score_share, select
from tests.ops.attention.attention_suite import B, H, make_inputs


@pytest.fixture(autouse=True)
def without_kernels(monkeypatch):
    """As where there is no compiler."""
    monkeypatch.setattr(select, "is_native", lambda: False)


def test_every_implementation_has_a_line():
    assert set(get_args(select.Implementation)) == set(select.IMPLEMENTATIONS)


def test_what_only_dense_can_do(monkeypatch):
    """Weights and dropout are there whatever the span."""
    monkeypatch.setattr(select, "LEAST_POSITIONS", 0)
    inputs = jax.tree.map(jnp.asarray, make_inputs((9, 8), dtype=np.float32)) | {"sigma": jnp.array([0.05, 0.05])}
    options = {"dropout_rate": 0.5, "dropout_rng": jax.random.key(0), "return_weights": True}
    sigma = inputs.pop("sigma")  # concrete, as where no program is traced

    def attend(implementation):
        options["implementation"] = implementation
        return jax.jit(lambda x: relative_attention(**x, sigma=sigma, grid_shape=(9, 8), **options))(inputs)

    outputs, weights = attend("auto")
    expected = attend("dense")
    np.testing.assert_allclose(outputs, expected[0], rtol=1e-6)
    assert weights.shape == (B, H, 72, 72)


@pytest.mark.parametrize("sigma", [pytest.param(0.03, marks=pytest.mark.slow), 1.0])
def test_chosen_at_run_time(sigma):
    """A traced span: "dense" and every tiling are in the program, and give the same as the reference."""
    shape = (16, 16)
    inputs = jax.tree.map(jnp.asarray, make_inputs(shape, dtype=np.float32)) | {"sigma": jnp.full(2, sigma)}

    def gradients(implementation):
        def loss(x):
            return (relative_attention(**x, grid_shape=shape, implementation=implementation) ** 2).sum()

        return jax.jit(jax.grad(loss))(inputs)

    assert "cond" in str(jax.make_jaxpr(lambda x: relative_attention(**x, grid_shape=shape))(inputs))
    given = gradients("auto")
    for name, expected in gradients("reference").items():
        np.testing.assert_allclose(given[name], expected, rtol=1e-3, atol=1e-4, err_msg=name)


def test_a_known_span_needs_no_choice_at_run_time():
    shape = (16, 16)
    inputs = jax.tree.map(jnp.asarray, make_inputs(shape, span=False, dtype=np.float32))
    for options in ({"sigma": jnp.full(2, 0.03)}, {"sigma": jnp.full(2, 0.9)}, {}):
        jaxpr = jax.make_jaxpr(lambda x, o=options: relative_attention(**x, **o, grid_shape=shape))(inputs)
        assert "cond" not in str(jaxpr)


def test_share_of_the_scores():
    assert score_share((64, 64), None) == 1
    assert score_share((64, 64), (8, 8), implementation="dense") == 1
    assert score_share((64, 64), (63, 63)) == 1  # "dense"
    assert score_share((8, 8), (0, 0)) == 1  # too few positions
    assert score_share((64, 64), (8, 8)) == pytest.approx((4 + 16) ** 2 / 64**2)  # tiles of 4 x 4
    assert score_share((64, 64), (5, 5), span_bound=(6, 6)) == pytest.approx((4 + 12) ** 2 / 64**2)
    assert score_share((5, 4), (1, 2), implementation="patch") == 3 * 4 / 20
    assert score_share((5, 4), (1, 2), implementation="window") == 3 * 5 / 20


@pytest.mark.slow
def test_a_batch_over_many_devices():
    """Every device computes its examples, with either implementation, and the result is that of one device."""
    shape = (16, 16)
    inputs = jax.tree.map(jnp.asarray, make_inputs(shape, batch=8, dtype=np.float32))
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
    sharded = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    replicated = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    shardings = {name: sharded if name in ("query", "key", "value") else replicated for name in inputs}

    def loss(x):
        return (relative_attention(**x, grid_shape=shape) ** 2).sum()

    for sigma in (0.05, 1.0):
        x = inputs | {"sigma": jnp.full(2, sigma)}
        expected = jax.jit(jax.grad(loss))(x)
        gradients = jax.jit(jax.grad(loss), in_shardings=(shardings,))(jax.device_put(x, shardings))
        for name in expected:
            np.testing.assert_allclose(gradients[name], expected[name], rtol=1e-3, atol=1e-4, err_msg=name)
