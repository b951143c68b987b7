"""The attention weights against another implementation's, and with class tokens against loops."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax.ops.attention import Problem, attention_weights, average, relative_attention
from tests import oracle
from tests.support.slow import slow

H, D = 2, 3


def make_inputs(grid_shape, cls=0, sigma=None, seed=0):
    rng = np.random.default_rng(seed)
    n = cls + math.prod(grid_shape)
    shapes = {"query": (2, n, H, D), "key": (2, n, H, D), "content_bias": (H, D), "position_bias": (H, D)}
    shapes["relative_encoding"] = (*(2 * size - 1 for size in grid_shape), H, D)
    shapes["relative_bias"] = shapes["relative_encoding"][:-1]
    x = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    return x if sigma is None else x | {"sigma": np.array(sigma)}


@pytest.mark.parametrize(
    "grid_shape, sigma, options",
    [
        slow((5,), None, {"is_causal": True}),
        slow((3, 4), (0.2, 0.4), {"scale": 0.7}),
        slow((3, 4), ((0.2, 0.4), (0.3, 0.1)), {"span_mode": "log_add", "threshold": 0.3}),
        ((2, 1, 3), (((0.3, 0, 0), (0.1, 0.2, 0), (0, 0.1, 0.4)),), {"threshold": 0.0}),
        ((6,), (0.2,), {"key_mask": np.arange(12).reshape(2, 6) % 4 > 0, "reference_shape": (4,)}),
        slow((2, 2), None, {"dropout_rate": 0.5, "dropout_rng": jax.random.key(3)}),
    ],
    ids=["causal", "scale", "per-head", "full", "padding", "dropout"],
)
def test_are_those_of_relative_attention(float64, grid_shape, sigma, options):
    x = {name: jnp.asarray(array) for name, array in make_inputs(grid_shape, sigma=sigma).items()}
    options = {name: jnp.asarray(value) if name == "key_mask" else value for name, value in options.items()}
    cotangent = jax.random.normal(jax.random.key(0), (2, H, math.prod(grid_shape), math.prod(grid_shape)))

    def one(x):
        weights = attention_weights(Problem(**x, value=None, grid_shape=grid_shape, **options))
        return jnp.sum(cotangent * weights), weights

    def other(x):
        attended = relative_attention(
            **x, value=x["key"], grid_shape=grid_shape, implementation="dense", return_weights=True, **options
        )
        return jnp.sum(cotangent * attended[1]), attended[1]

    gradients, weights = jax.jit(jax.grad(one, has_aux=True))(x)
    expected_gradients, expected = jax.jit(jax.grad(other, has_aux=True))(x)
    np.testing.assert_allclose(weights, expected, rtol=1e-12, atol=1e-12)
    for name, gradient in expected_gradients.items():
        np.testing.assert_allclose(gradients[name], gradient, rtol=1e-10, atol=1e-12, err_msg=name)


def loops(x, grid_shape, cls, half_span, span_mode, value):
    """Outputs of `value` with class tokens, whose pairs have content scores and the scores A alone."""
    where, sigma = oracle.positions(grid_shape), x["sigma"]
    covariance = oracle.covariance(sigma)
    precision = np.moveaxis(np.linalg.inv(np.moveaxis(covariance, -1, 0)), 0, -1)
    outputs = np.zeros((*value.shape, sigma.shape[-1]), complex)
    b, n = value.shape[:2]
    for i, j, t in np.ndindex(b, H, n):
        logits = {}
        for s in range(n):
            of_grid = t >= cls and s >= cls
            a = x["pair_scores"][i, j, t, s]
            for f in range(D):
                a = a + (x["query"][i, t, j, f] + x["content_bias"][j, f]) * x["key"][i, s, j, f]
            if of_grid:
                offset = tuple(k - q for k, q in zip(where[s - cls], where[t - cls], strict=True))
                index = tuple(o + size - 1 for o, size in zip(offset, grid_shape, strict=True))
                for f in range(D):
                    q = x["query"][i, t, j, f] + x["position_bias"][j, f]
                    a = a + q * x["relative_encoding"][(*index, j, f)]
            a = a / math.sqrt(D)
            if of_grid:
                a = a + x["relative_bias"][(*index, j)]
                if any(abs(o) > reach for o, reach in zip(offset, half_span, strict=True)):
                    continue
                if not oracle.inside(offset, covariance, 0.1, grid_shape):
                    continue
                log_g = oracle.log_gaussian(offset, precision, grid_shape)
                a = np.exp(log_g) * a if span_mode == "multiply" else a + log_g
            logits[s] = a
        largest = max(a.flat[0].real for a in logits.values())
        exps = {s: np.exp(a - largest) for s, a in logits.items()}
        for s, e in exps.items():
            outputs[i, t, j] += e / sum(exps.values()) * value[i, s, j][:, None]
    return outputs


@pytest.mark.parametrize(
    "grid_shape, half_span, cls",
    [((3,), (1,), 1), ((2, 2), (0, 1), 2), slow((3,), (1,), 2), slow((2, 2), (0, 1), 1)],
    ids=str,
)
@pytest.mark.parametrize("span_mode", [slow("multiply"), "log_add"])
def test_class_tokens_and_a_limit(float64, grid_shape, half_span, span_mode, cls):
    x = make_inputs(grid_shape, cls, (0.6,) * len(grid_shape))
    n = cls + math.prod(grid_shape)
    x["pair_scores"] = np.random.default_rng(5).normal(size=(2, H, n, n))
    value = np.random.default_rng(6).normal(size=(2, n, H, 1))
    expected, expected_gradients = oracle.value_and_gradients(
        lambda x: loops(x, grid_shape, cls, half_span, span_mode, value), x
    )

    def loss(x):
        fields = {"grid_shape": grid_shape, "num_class_tokens": cls, "limit": half_span, "span_mode": span_mode}
        outputs = average(attention_weights(Problem(**x, value=None, **fields)), jnp.asarray(value))
        return outputs.sum(), outputs

    gradients, outputs = jax.jit(jax.grad(loss, has_aux=True))({name: jnp.asarray(a) for name, a in x.items()})
    np.testing.assert_allclose(outputs, expected, rtol=1e-10, atol=1e-10)
    for name, gradient in expected_gradients.items():
        np.testing.assert_allclose(gradients[name], gradient, rtol=1e-10, atol=1e-10, err_msg=name)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"grid_shape": (3,)}, r"query .*\(2, 4, 2, 3\): .*\(2, 3, 2, 3\)"),
        ({"num_class_tokens": 1}, r"\(2, 5, 2, 3\) .*num_class_tokens=1"),
        ({"limit": (1, 1)}, r"limit=\(1, 1\)"),
        ({"pair_scores": np.zeros((2, H, 4, 3))}, "pair_scores has shape"),
        (
            dict.fromkeys(("key", "content_bias", "position_bias", "relative_encoding", "relative_bias")),
            "are all None: expected at least one",
        ),
        ({"dropout_rate": 0.5}, "dropout_rate=0.5 needs dropout_rng"),
        ({"sigma": np.array([0.0])}, "sigma"),
        ({"key_mask": np.zeros((2, 4), np.float32)}, "key_mask has dtype float32"),
    ],
)
def test_bad_arguments(unchecked, options, message):
    x = {name: jnp.asarray(array) for name, array in make_inputs((4,)).items()}
    with pytest.raises(ValueError, match=message):
        attention_weights(Problem(**({"grid_shape": (4,), "value": None} | x | options)))
