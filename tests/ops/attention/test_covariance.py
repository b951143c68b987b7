"""A span of full covariance in every implementation: against the oracle, and sigma where its factor is diagonal."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax.ops.attention import select
from posattn_jax.ops.attention.xla import loop, rows, tiles
from tests.ops.attention.attention_suite import AllPairsSuite, B, LocalSuite, StaticSpanSuite, make_inputs
from tests.support.slow import slow

SUITES = {
    "reference": AllPairsSuite,
    "dense": AllPairsSuite,
    "tiled": LocalSuite,
    "auto": AllPairsSuite,
    "patch": StaticSpanSuite,
    "window": StaticSpanSuite,
}


def implementation(implementation):
    suite = SUITES[implementation]()
    suite.implementation = implementation
    return suite


# On a small grid "auto" is "dense". Of the two of a static span the other has a suite of its own.
@pytest.fixture(params=["reference", "dense", "tiled", "window", slow("patch")])
def suite(request):
    return implementation(request.param)


@pytest.mark.parametrize(
    "grid_shape, heads, threshold, span_mode",
    [
        slow((5,), "shared", 0.1, "multiply"),
        slow((3, 2), "per_head", 0.1, "multiply"),
        slow((2, 3), "shared", 0.0, "log_add"),
        ((2, 3, 2), "per_head", 0.1, "log_add"),
        slow((1,), "per_head", 0.1, "log_add"),
        slow((2, 1), "per_head", 0.0, "multiply"),
        slow((4, 3), "shared", 0.1, "log_add"),
        slow((2, 1, 3), "shared", 0.1, "multiply"),
    ],
    ids=str,
)
def test_values_and_gradients(float64, suite, grid_shape, heads, threshold, span_mode):
    inputs = make_inputs(grid_shape, covariance="full", per_head=heads == "per_head", batch=1)
    suite.check_against_oracle(inputs, grid_shape, threshold=threshold, span_mode=span_mode)


@pytest.mark.slow
@pytest.mark.parametrize("grid_shape", [(3, 4), slow((2, 1, 2))], ids=str)
def test_causal_and_padding(float64, suite, grid_shape):
    mask = np.random.default_rng(2).random((B, math.prod(grid_shape))) < 0.6
    inputs = make_inputs(grid_shape, covariance="full", per_head=True)
    larger = tuple(size + 1 for size in grid_shape)
    suite.check_against_oracle(inputs, grid_shape, is_causal=True, key_mask=mask, reference_shape=larger)


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["dense", "tiled", slow("auto")])
@pytest.mark.parametrize("per_head, span_mode", [(True, "log_add"), slow(False, "multiply")])
def test_in_many_trips(float64, monkeypatch, implementation, per_head, span_mode):
    """Rows and tiles of two queries of one head, each computed alone; "auto" chooses between them at run time."""
    monkeypatch.setattr(select, "LEAST_POSITIONS", 0)
    monkeypatch.setattr(loop, "SCORE_BYTES", {"cpu": 1})
    monkeypatch.setattr(rows, "ROW_QUERIES", 2)
    monkeypatch.setattr(tiles, "TILE_QUERIES", 2)
    monkeypatch.setattr(tiles, "WINDOW_HALVES", dict.fromkeys((1, 2, 3), (1,)))
    mask = np.random.default_rng(2).random((B, 20)) < 0.6
    inputs = make_inputs((5, 4), covariance="full", per_head=per_head)
    implementation(implementation).check_against_oracle(inputs, (5, 4), key_mask=mask, span_mode=span_mode)


@pytest.mark.slow
@pytest.mark.parametrize("grid_shape, per_head", [((4, 3), True), slow((2, 1, 3), False)], ids=str)
def test_a_diagonal_factor_is_sigma(float64, suite, grid_shape, per_head):
    """In values and gradients, whatever the signs; above the diagonal the gradient is 0."""
    inputs = make_inputs(grid_shape, per_head=per_head)
    options = suite.bounded({}, inputs, grid_shape)
    factor = np.eye(len(grid_shape)) * np.atleast_2d(inputs["sigma"])[..., None]

    @jax.jit
    def evaluate(inputs):
        outputs, pull = jax.vjp(lambda x: suite.attend(x, grid_shape, **options), inputs)
        return outputs, pull(outputs)[0]

    expected, expected_gradients = evaluate(jax.tree.map(jnp.asarray, inputs))
    outputs, gradients = evaluate(jax.tree.map(jnp.asarray, inputs | {"sigma": factor}))
    d_factor = gradients["sigma"]
    gradients["sigma"] = d_factor.diagonal(axis1=1, axis2=2).reshape(inputs["sigma"].shape)
    np.testing.assert_allclose(outputs, expected, rtol=1e-12)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, expected_gradients[name], rtol=1e-9, atol=1e-12, err_msg=name)
    np.testing.assert_array_equal(np.triu(d_factor, 1), 0)


@pytest.mark.slow
def test_bad_factor(suite):
    """Concrete values raise; under a trace 0 on the diagonal is a floor, and NaN propagates."""
    shape, bound = (3, 2, 3), (2, 1, 2)
    inputs = jax.tree.map(jnp.asarray, make_inputs(shape, dtype=np.float32))
    traced = jax.jit(lambda sigma: suite.attend(inputs | {"sigma": sigma}, shape, span_bound=bound))
    gradient = jax.jit(jax.grad(lambda sigma: traced(sigma).sum()))
    singular, unknown = jnp.ones((1, 3, 3)).at[0, 1, 1].set(0), jnp.ones((1, 3, 3)).at[0, 2, 0].set(jnp.nan)
    for bad in (singular, unknown):
        with pytest.raises(ValueError, match="sigma=.*finite"):
            suite.attend(inputs | {"sigma": bad}, shape)
    assert np.isnan(traced(unknown)).all()
    np.testing.assert_allclose(traced(jnp.zeros((1, 3, 3))), inputs["value"], atol=1e-6)
    for degenerate in (singular, jnp.tri(3)[None] - jnp.eye(3), jnp.zeros((1, 3, 3))):
        assert np.isfinite(traced(degenerate)).all() and np.isfinite(gradient(degenerate)).all()


def test_bad_shape(unchecked):
    inputs = make_inputs((3, 2), dtype=np.float32)
    with pytest.raises(ValueError, match=r"\(3, 2, 2\): .*\(2,\) or \(2, 2\)"):
        implementation("auto").attend(inputs | {"sigma": jnp.ones((3, 2, 2))}, (3, 2))
