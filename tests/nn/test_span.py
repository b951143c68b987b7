"""Learned windows of any form: the definitions, every implementation, widths at their ends, and a user's own form."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax import (
    Content,
    FlatSpan,
    GaussianSpan,
    LearnedWindow,
    Positional,
    PositionalSelfAttention,
    RampSpan,
    SirenEncoding,
    Tokens,
    WindowSpan,
    relative_attention,
)
from posattn_jax.ops.span import half_span, span_share
from tests import oracle
from tests.ops.attention.attention_suite import NATIVE, H, make_inputs
from tests.support.slow import slow


class CosineSpan(LearnedWindow):
    """A user's own: m(r) = cos(pi r / 2)^2."""

    def log_profile(self, distance):
        return 2 * jnp.log(jnp.maximum(jnp.cos(jnp.minimum(distance, 1) * math.pi / 2), 1e-30))


# m at a distance in widths, as formulas of complex numbers whose real part decides.
PROFILES = {
    RampSpan: lambda span, r: 0 if r.real >= 1 else 1 if 1 - r.real >= span.ramp else (1 - r) / span.ramp,
    FlatSpan: lambda span, r: span.edge ** (r**span.power),
    CosineSpan: lambda span, r: np.cos(r * math.pi / 2) ** 2 if r.real < 1 else 0,
}


def expected_outputs(x, span, grid_shape, reference_shape):
    """The oracle's, with ln m as a bias and without the pairs outside the box, those of heads one after the other."""
    where = oracle.positions(grid_shape)
    n, p = len(where), len(grid_shape)
    widths = np.exp(x["log_width"]).reshape(-1, p, x["log_width"].shape[-1])
    units = [oracle.unit(size) for size in reference_shape]
    bias = np.zeros((1, H, n, n, widths.shape[-1]), complex)
    kept = np.zeros((1, H, n, n), bool)
    for head, t, s in np.ndindex(H, n, n):
        width, m = widths[head % len(widths)], np.ones(widths.shape[-1], complex)
        offsets = np.subtract(where[s], where[t])
        for i in range(p):
            r = abs(offsets[i]) / units[i] / width[i]
            m = m * np.array([PROFILES[type(span)](span, each) for each in r])
        halves = [math.ceil(width[i, 0].real * units[i]) for i in range(p)]
        kept[0, head, t, s] = all(np.abs(offsets) <= halves) and m[0] != 0
        bias[0, head, t, s] = np.log(m) if kept[0, head, t, s] else 0
    arrays = {name: array for name, array in x.items() if name != "log_width"}
    return oracle.attention(arrays | {"bias": bias}, grid_shape, mask=kept)


def extent(span, log_width, grid_shape, reference_shape=()):
    tokens = Tokens(jnp.zeros((1, math.prod(grid_shape), H)), grid_shape, H, reference_shape=reference_shape)
    return span.apply({"params": {"log_width": log_width}}, tokens)


@pytest.mark.parametrize("implementation", ["dense", *NATIVE, slow("reference"), slow("tiled")])
@pytest.mark.parametrize(
    "span, grid_shape, reference_shape",
    [
        (RampSpan(initial_width=0.7), (3, 2), (4, 3)),
        (FlatSpan(initial_width=0.6, per_head=False), (5,), (5,)),
        slow(CosineSpan(initial_width=0.8), (2, 1, 3), (2, 1, 3)),
        slow(RampSpan(initial_width=9.0, ramp=1.0), (2, 2), (2, 2)),
        slow(FlatSpan(initial_width=0.01), (3, 1), (3, 1)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else str(value),
)
def test_values_and_gradients(float64, implementation, span, grid_shape, reference_shape):
    rng = np.random.default_rng(0)
    inputs = make_inputs(grid_shape, span=False, batch=1)
    shape = (H, len(grid_shape)) if span.per_head else (len(grid_shape),)
    inputs["log_width"] = np.log(span.initial_width * rng.uniform(0.7, 1.2, shape))
    weights = rng.normal(size=inputs["value"].shape)
    expected, expected_gradients = oracle.value_and_gradients(
        lambda x: weights[..., None] * expected_outputs(x, span, grid_shape, reference_shape), inputs
    )

    @jax.jit
    def differentiate(x):
        def loss(x):
            arrays = {name: array for name, array in x.items() if name != "log_width"}
            sigma, threshold, mode, window = extent(span, x["log_width"], grid_shape, reference_shape)
            fields = {"threshold": threshold, "span_mode": mode, "reference_shape": reference_shape}
            fields |= {"sigma": sigma, "relative_bias": window, "grid_shape": grid_shape}
            outputs = weights * relative_attention(**arrays, **fields, implementation=implementation)
            return outputs.sum(), outputs

        return jax.grad(loss, has_aux=True)(x)

    gradients, outputs = differentiate(jax.tree.map(jnp.asarray, inputs))
    np.testing.assert_allclose(outputs, expected, rtol=1e-10, atol=1e-10)
    for name, gradient in expected_gradients.items():
        np.testing.assert_allclose(gradients[name], gradient, rtol=1e-9, atol=1e-10, err_msg=name)


class StepSpan(LearnedWindow):
    """A user's own: 1 within half a width, and 0 outside."""

    def log_profile(self, distance):
        return jnp.where(distance < 0.5, 0.0, -jnp.inf)


@pytest.mark.parametrize("width", [0.3, 1.0, 1.4, 2.0, 2.6, 30.0])
@pytest.mark.parametrize("span", [RampSpan(), StepSpan(), FlatSpan(), CosineSpan()], ids=lambda s: type(s).__name__)
def test_the_box_ends_at_the_last_key_that_is_not_hidden(float64, span, width):
    """A width of 2.6 positions reaches 2 with a ramp, 3 with a window that is more than 0 at one width."""
    grid_shape, reference_shape, p = (7, 2, 1), (5, 4, 3), 3
    units = np.array([oracle.unit(size) for size in reference_shape])
    found = extent(span, jnp.log(width / units * jnp.ones((H, p))), grid_shape, reference_shape)
    half = half_span(found.sigma, found.threshold, grid_shape, reference_shape)
    hides = isinstance(span, RampSpan | StepSpan)
    farthest = max(math.ceil(width) - 1, 1) if hides else math.ceil(width)  # one key too many where none is seen
    np.testing.assert_array_equal(half, np.broadcast_to(np.minimum(farthest, np.subtract(grid_shape, 1)), (H, p)))


def test_the_box_of_queries_between_keys():
    """A query half a position from a key sees it with a width of .9, though not one that is a whole position away."""
    span, tokens = RampSpan(initial_width=0.9 / 3), Tokens(jnp.zeros((1, 2, H)), (4,), H, query_grid_shape=(2,))
    found, _ = span.init_with_output(jax.random.key(0), tokens)
    np.testing.assert_allclose(found.sigma, 0.3, rtol=1e-6)


X = jnp.asarray(np.random.default_rng(1).normal(size=(2, 7, 8)), jnp.float32)


ANY_SIZE = [RampSpan(), FlatSpan(power=32.0), slow(FlatSpan()), slow(CosineSpan())]


@pytest.mark.parametrize("span", ANY_SIZE, ids=lambda span: type(span).__name__)
def test_widths_of_any_size(span):
    """A width of nearly 0 is the query alone, a huge one every key; NaN reaches the outputs. Gradients are finite."""
    layer = PositionalSelfAttention(H, terms=(Content(),), span=span)
    variables = layer.init(jax.random.key(0), X)

    @jax.jit
    def run(log_width):
        def loss(log_width):
            params = {**variables["params"], "span": {"log_width": jnp.full((H, 1), log_width)}}
            outputs, made = layer.apply({"params": params}, X, return_weights=True)
            return jnp.sum(outputs**2), (outputs, made["weights"])

        return jax.value_and_grad(loss, has_aux=True)(log_width)

    for log_width, shown in ((-60.0, np.eye(7)), (-np.inf, np.eye(7)), (60.0, np.ones((7, 7)))):
        (_, (_, weights)), gradient = run(log_width)
        np.testing.assert_array_equal(weights[0, 0] > 0, shown > 0)
        assert np.isfinite(gradient)
    (_, (outputs, _)), _ = run(np.nan)
    assert np.isnan(outputs).all()


def test_its_share_of_pairs_has_a_gradient():
    """So that a penalty makes it narrower: the derivative of r (2 - r) by ln r is 2 r (1 - r)."""
    span = FlatSpan(initial_width=0.25)

    def share(log_width):
        return span_share(extent(span, log_width, (9,)).sigma, span.threshold)

    found, gradient = jax.value_and_grad(share)(jnp.full((H, 1), math.log(0.25)))
    assert found == pytest.approx(0.25 * 1.75)
    assert float(gradient.sum()) == pytest.approx(2 * 0.25 * 0.75, rel=1e-5)


def test_a_gaussian_in_the_logarithm_of_sigma_is_the_same():
    """The derivative by ln sigma is sigma times that by sigma."""
    plain, log = (GaussianSpan(initial_sigma=0.2, per_head=True, covariance=each) for each in ("diagonal", "log"))
    gradients = []
    for span in (plain, log):
        layer = PositionalSelfAttention(H, span=span)
        variables = layer.init(jax.random.key(0), X)
        loss = jax.jit(jax.grad(lambda v, layer=layer: jnp.sum(jnp.square(layer.apply(v, X)))))
        gradients.append(loss(variables)["params"])
    np.testing.assert_allclose(gradients[0]["output"]["kernel"], gradients[1]["output"]["kernel"], rtol=1e-4)
    np.testing.assert_allclose(gradients[1]["span"]["log_sigma"], 0.2 * gradients[0]["span"]["sigma"], rtol=1e-4)


@pytest.mark.parametrize("implementation", ["patch", "window"])
def test_a_fixed_window_is_known_while_jax_traces(implementation):
    """Implementations of a static size need no `span_bound` for it."""

    def value_and_gradients(implementation):
        parts = {"terms": (Content(), Positional(SirenEncoding())), "span": WindowSpan((1, 2))}
        layer = PositionalSelfAttention(H, **parts, implementation=implementation)
        inputs = X[:, :6]
        variables = jax.jit(layer.init, static_argnums=2)(jax.random.key(0), inputs, (2, 3))
        return jax.jit(jax.value_and_grad(lambda v: jnp.sum(layer.apply(v, inputs, (2, 3)) ** 2)))(variables)

    found, expected = value_and_gradients(implementation), value_and_gradients("reference")
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, expected)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: RampSpan(initial_width=0.0), "initial_width=0.0"),
        (lambda: FlatSpan(initial_width=math.nan), "initial_width=nan"),
        (lambda: RampSpan(ramp=1.5), "ramp=1.5"),
        (lambda: FlatSpan(edge=1.0), "edge=1.0"),
        (lambda: FlatSpan(power=0.5), "power=0.5"),
        (lambda: FlatSpan(power="8"), "power='8': expected at least 1"),
        (lambda: GaussianSpan(initial_sigma="wide"), "initial_sigma='wide': expected more than 0"),
    ],
)
def test_what_is_no_window(unchecked, make, message):
    with pytest.raises(ValueError, match=message):
        make()
