"""Attention whose examples are shared out over devices is that of one device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from posattn_jax import Content, Positional, PositionalSelfAttention, SinusoidalEncoding
from posattn_jax.nn.sharding import each_its_own
from posattn_jax.ops.attention import Problem, attend
from tests.support.slow import slow

GRID, N, B, H = (3, 2), 6, 8, 2
RNG = np.random.default_rng(0)
TABLES = {"relative_encoding": RNG.normal(size=(5, 3, H, 4)), "relative_bias": RNG.normal(size=(5, 3, H))}
MORE = {
    "a span": TABLES | {"sigma": np.array([0.4, 0.9])},
    "biases": TABLES | {"content_bias": RNG.normal(size=(H, 4)), "position_bias": RNG.normal(size=(H, 4))},
    "padding": TABLES | {"key_mask": RNG.random((B, N)) < 0.7},
    "segments": TABLES | {"segment_ids": np.sort(RNG.integers(0, 2, (B, N)))},
    "a mask for all": {"mask": np.tril(np.ones((1, 1, N, N), bool))},
    "a mask for each": {"mask": RNG.random((B, 1, N, N)) < 0.7},
    "scores of pairs": {"pair_scores": RNG.normal(size=(B, H, N, N)), "return_weights": True},
}
ALIKE = ("biases", "a mask for all", "segments")  # as others here, or as the implementations' own tests have them
MESHES = [(2, 2, 2, 1), slow((8, 1, 1, 1))]
SINUSOIDS = [("traced", "factorised"), ("untraced", "factorised"), slow("traced", "auto"), slow("untraced", "auto")]


def mesh(*sizes):
    return jax.make_mesh(sizes, ("data", "fsdp", "model", "grid"), axis_types=(AxisType.Auto,) * 4)


def results(given, features, arrays, attending):
    """Outputs, weights where asked for, and the gradients of everything."""

    def both(features, arrays):
        problem = Problem(**features, **given, **arrays, grid_shape=GRID)
        return each_its_own(lambda own: attend(own, "dense"), problem)

    def loss(features, arrays):
        found = both(features, arrays)
        return sum((x * jnp.cos(jnp.arange(x.size).reshape(x.shape))).sum() for x in jax.tree.leaves(found)), found

    return attending(jax.grad(loss, (0, 1), has_aux=True))(features, arrays)


@pytest.mark.parametrize("sizes", MESHES, ids=str)
@pytest.mark.parametrize("more", [slow(name) if name in ALIKE else name for name in MORE])
def test_outputs_and_gradients(float64, unchecked, more, sizes):
    given = {name: x for name, x in MORE[more].items() if np.asarray(x).dtype.kind != "f"}
    arrays = {name: jnp.asarray(x) for name, x in MORE[more].items() if name not in given}
    query, key, value = jnp.asarray(RNG.normal(size=(3, B, N, H, 4)))
    of = (given, {"query": query, "key": key, "value": value}, arrays)
    expected = results(*of, jax.jit)
    with jax.set_mesh(mesh(*sizes)):
        found = jax.device_get(results(*of, jax.jit))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12), found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", MESHES, ids=str)
@pytest.mark.parametrize("how, implementation", SINUSOIDS)
def test_sinusoids_that_are_not_laid_out(float64, how, implementation, sizes):
    """Whose factors are no array alone."""
    terms = (Content(), Positional(SinusoidalEncoding()))
    layer = PositionalSelfAttention(
        num_heads=H, terms=terms, implementation=implementation, dtype=jnp.float64, param_dtype=jnp.float64
    )
    features = jnp.asarray(RNG.normal(size=(B, *GRID, 8)))
    variables = layer.init(jax.random.key(0), features)
    expected = layer.apply(variables, features)
    with jax.set_mesh(mesh(*sizes)):
        found = (jax.jit(layer.apply) if how == "traced" else layer.apply)(variables, features)
    np.testing.assert_allclose(jax.device_get(found), expected, rtol=1e-10, atol=1e-12)
