import collections
import dataclasses
import functools
import types
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax import ops
from posattn_jax.nn.attention import PositionalSelfAttention
from posattn_jax.nn.encodings import SinusoidalEncoding
from posattn_jax.nn.siren import SirenEncoding
from posattn_jax.nn.span import GaussianSpan
from posattn_jax.nn.terms import Content, Positional
from tests.support.made_params import made_params
from tests.support.made_tokens import made_tokens
from tests.support.slow import slow

GRID = (33, 9)


def extent(encoding):
    """The half-spans outside which E is 0."""
    used = np.abs(np.asarray(encoding)).sum((-2, -1)) > 0
    return tuple(np.abs(np.nonzero(used)[axis] - (GRID[axis] - 1)).max() for axis in range(2))


@pytest.mark.parametrize("encoding", [SirenEncoding(), SinusoidalEncoding()], ids=["siren", "sinusoidal"])
def test_evaluated_only_within_reach(encoding):
    """As the whole encoding within the reach, 0 beyond the share of the grid that holds it; gradients alike."""
    tokens = functools.partial(made_tokens, 2, 4, GRID)
    whole, variables = jax.jit(lambda key: encoding.init_with_output(key, tokens()))(jax.random.key(0))
    at_run_time = jax.jit(lambda v, reach: encoding.apply(v, tokens(reach=reach)))
    before = jax.jit(lambda v, reach: encoding.apply(v, tokens(reach=reach)), static_argnums=1)
    for reach, evaluated in (
        ((1, 0), (2, 1)),
        ((2, 1), (2, 1)),
        ((3, 1), (4, 1)),
        ((9, 2), (16, 4)),
        ((2, 8), (32, 8)),
    ):
        for within in (
            at_run_time(variables, jnp.array(reach)),
            before(variables, evaluated),
        ):
            assert extent(within) == evaluated
            box = tuple(slice(s - 1 - r, s + r) for s, r in zip(GRID, evaluated, strict=True))
            np.testing.assert_allclose(within[box], whole[box], rtol=1e-5, atol=1e-6)


@dataclasses.dataclass(frozen=True)
class Scaled:
    """x -> factor operand x; it counts how often it is traced."""

    factor: float
    traced: ClassVar[list[float]] = []

    def __call__(self, operand, x):
        self.traced.append(self.factor)
        return self.factor * operand * x


def test_equal_functions_are_traced_once():
    features = jnp.arange(65.0 * 17).reshape(65, 17, 1)
    Scaled.traced.clear()

    @jax.jit
    def of_layers(reach):
        layers = (Scaled(2.0), 3.0), (Scaled(2.0), 5.0), (Scaled(7.0), 3.0)
        return [ops.reach.within_reach(each, jnp.array(x), features, GRID, reach) for each, x in layers]

    found = of_layers(jnp.array((32, 8)))
    for values, factor in zip(found, (6.0, 10.0, 21.0), strict=True):
        np.testing.assert_array_equal(values, factor * features)
    assert collections.Counter(Scaled.traced) == {2.0: len(ops.reach.SHARES), 7.0: len(ops.reach.SHARES)}


def test_an_accelerator_evaluates_few_offsets_all(monkeypatch):
    encoding, reached = SirenEncoding(), jnp.array((1, 0))

    def evaluated(platform, grid_shape):
        device = types.SimpleNamespace(platform=platform)
        monkeypatch.setattr(ops.reach, "get_default_device", lambda: device)
        tokens = made_tokens(2, 4, grid_shape, reach=reached)
        variables = jax.eval_shape(lambda: encoding.init(jax.random.key(0), tokens))
        return str(jax.make_jaxpr(lambda variables: encoding.apply(variables, tokens))(variables))

    assert "cond[" in evaluated("cpu", (32, 32)) and "cond[" in evaluated("gpu", (33, 33))
    assert "cond[" not in evaluated("gpu", (32, 32))


@pytest.mark.parametrize(
    "covariance, span_bound", [("diagonal", (3, 3)), slow("full", None), slow("diagonal", None)], ids=str
)
def test_the_layer_is_the_same(covariance, span_bound):
    """Its outputs and gradients do not know that E was evaluated only where the span reaches."""
    inputs = jax.random.normal(jax.random.key(1), (2, 12 * 11, 8))

    def gradients(threshold, implementation, span_bound):
        layer = PositionalSelfAttention(
            2,
            terms=(Content(), Positional(SirenEncoding())),
            span=GaussianSpan(threshold=threshold, initial_sigma=0.1, covariance=covariance),
            implementation=implementation,
        )
        variables = made_params(lambda: layer.init(jax.random.key(0), inputs, (12, 11)))

        def loss(variables):
            outputs, made = layer.apply(variables, inputs, (12, 11), span_bound=span_bound, return_intermediates=True)
            return jnp.sum(outputs**2), made["relative_encoding"]

        return jax.jit(jax.grad(loss, has_aux=True))(variables)

    expected, _ = gradients(0.1, "reference", (11, 10))
    given, encoding = gradients(0.1, "tiled", span_bound)
    assert (np.asarray(encoding) == 0).mean() > 0.5
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), given, expected)
