"""Every implementation against the reference on random problems, values and gradients; and gradients of gradients."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from posattn_jax.ops.attention import relative_attention, select
from posattn_jax.ops.attention.xla import loop, rows, tiles
from posattn_jax.ops.span import span_size
from tests import oracle
from tests.ops.attention.attention_suite import NATIVE, make_inputs
from tests.support.slow import slow

IMPLEMENTATIONS = ("auto", "dense", "patch", "window", "tiled", *NATIVE)


@st.composite
def sigmas(draw, dims, h):
    """[p] or [h p], or as many factors: off the diagonal at most as large as on it."""
    shape = draw(st.sampled_from([(dims,), (h, dims)]))
    n = math.prod(shape)
    sigma = np.array(draw(st.lists(st.floats(0.02, 1.2), min_size=n, max_size=n))).reshape(shape)
    if draw(st.booleans()):
        return sigma
    leaning = draw(st.lists(st.floats(-1, 1), min_size=dims**2, max_size=dims**2))
    return np.atleast_2d(sigma)[..., None] * (np.eye(dims) + np.tril(np.reshape(leaning, (dims, dims)), -1))


@st.composite
def problems(draw):
    dims = draw(st.integers(1, 3))
    shape = tuple(draw(st.integers(1, (40, 9, 5)[dims - 1])) for _ in range(dims))
    h = draw(st.integers(1, 3))
    return {
        "shape": shape,
        "sizes": (draw(st.integers(1, 2)), h, draw(st.integers(1, 5))),
        "seed": draw(st.integers(0, 2**16)),
        "sigma": draw(sigmas(dims, h)),
        "options": {
            "threshold": draw(st.sampled_from([0.0, 0.1, 0.5])),
            "span_mode": draw(st.sampled_from(["multiply", "log_add"])),
            "is_causal": draw(st.booleans()),
        },
        "masked": draw(st.booleans()),
        "left_out": draw(
            st.sampled_from([(), ("key", "content_bias"), ("relative_encoding", "position_bias"), ("sigma",)])
        ),
        "implementation": draw(st.sampled_from(IMPLEMENTATIONS)),
        "dtype": draw(st.sampled_from([np.float32, np.float64])),
    }


def check(problem):
    shape, (b, h, d) = problem["shape"], problem["sizes"]
    rng = np.random.default_rng(problem["seed"])
    n = math.prod(shape)
    shapes = dict.fromkeys(("query", "key", "value"), (b, n, h, d))
    shapes |= {
        "relative_encoding": (*(2 * s - 1 for s in shape), h, d),
        "content_bias": (h, d),
        "position_bias": (h, d),
    }
    inputs = {name: rng.normal(size=size) for name, size in shapes.items()} | {"sigma": problem["sigma"]}
    inputs = {name: x.astype(problem["dtype"]) for name, x in inputs.items() if name not in problem["left_out"]}
    options = dict(problem["options"])
    if "sigma" in inputs:
        size = np.asarray(span_size(jnp.asarray(inputs["sigma"]), options["threshold"], shape))
        options["span_bound"] = tuple(((size.reshape(-1, len(shape)).max(0) - 1) // 2).tolist())
    if problem["masked"]:
        options["key_mask"] = jnp.asarray(rng.random((b, n)) < 0.7)
    cotangent = rng.normal(size=(b, n, h, d)).astype(problem["dtype"])

    def evaluate(implementation):
        def attend(x):
            x = {"key": None} | x
            given = options if implementation in ("patch", "window") else {**options, "span_bound": None}
            return relative_attention(**x, grid_shape=shape, implementation=implementation, **given)

        @jax.jit
        def both(x):
            outputs, pull = jax.vjp(attend, x)
            return outputs, pull(cotangent)[0]

        return both(jax.tree.map(jnp.asarray, inputs))

    outputs, gradients = evaluate(problem["implementation"])
    expected, expected_gradients = evaluate("reference")
    tolerance = 1e-10 if problem["dtype"] is np.float64 else 1e-4
    scale = max(1.0, *(float(jnp.abs(g).max()) for g in jax.tree.leaves(expected_gradients)))
    np.testing.assert_allclose(outputs, expected, rtol=tolerance, atol=tolerance)
    for name, gradient in gradients.items():
        known_to = tolerance
        if name == "sigma" and options["span_mode"] == "log_add":
            # A logit is rounded in proportion to ln G = x^2 / 2 sigma^2, and its gradient multiplied by x^2 / sigma^3.
            # Of a factor the smallest is how thin its ellipse is.
            sigma = problem["sigma"]
            smallest = np.linalg.svd(sigma, compute_uv=False).min() if sigma.ndim == 3 else sigma.min()
            known_to += np.finfo(problem["dtype"]).eps * (1 + len(shape) / (2 * smallest**2)) / smallest**3
        np.testing.assert_allclose(gradient, expected_gradients[name], rtol=0, atol=known_to * scale, err_msg=name)


@pytest.fixture
def small_pieces(monkeypatch):
    """Several groups, steps and rows also on small grids."""
    monkeypatch.setattr(select, "LEAST_POSITIONS", 0)
    monkeypatch.setattr(loop, "SCORE_BYTES", {"cpu": 2**14})
    monkeypatch.setattr(rows, "ROW_QUERIES", 3)
    monkeypatch.setattr(tiles, "WINDOW_HALVES", {1: (1, 4), 2: (1, 2), 3: (1,)})


RANDOM = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture], "print_blob": True}


@given(problem=problems())
@settings(max_examples=2, derandomize=True, **RANDOM)
def test_random_problems(float64, small_pieces, problem):
    check(problem)


@pytest.mark.slow
@given(problem=problems())
@settings(max_examples=200, phases=[Phase.generate], **RANDOM)  # shrinking may take longer than all of them
def test_200_random_problems(float64, small_pieces, problem):
    check(problem)


SECOND = [("tiled", None)]  # sigma is traced, so that the number of steps is not known
SECOND += [slow(name, None) for name in ("auto", "dense", "reference", *NATIVE)]
SECOND += [slow(name, (3, 2)) for name in ("tiled", "auto", "patch", "window", *NATIVE)]


@pytest.mark.slow
@pytest.mark.parametrize("implementation, span_bound", SECOND, ids=str)
def test_gradients_of_gradients(float64, monkeypatch, implementation, span_bound):
    """The Hessian times a vector, in both modes, against differences of the oracle's gradients: every input's row."""
    monkeypatch.setattr(select, "LEAST_POSITIONS", 0)
    grid_shape, step = (4, 3), 1e-5
    inputs = make_inputs(grid_shape, batch=1) | {"sigma": np.array([0.3, 0.4])}
    rng = np.random.default_rng(1)
    inputs["relative_bias"] = rng.normal(size=inputs["relative_encoding"].shape[:-1])
    along = {name: rng.normal(size=array.shape) for name, array in inputs.items()}

    def oracles(sign):
        moved = {name: array + sign * step * along[name] for name, array in inputs.items()}
        return oracle.value_and_gradients(lambda x: oracle.attention(x, grid_shape) ** 2, moved)[1]

    ahead, behind = oracles(1), oracles(-1)
    options = {"grid_shape": grid_shape, "implementation": implementation, "span_bound": span_bound}
    gradients = jax.grad(lambda x: (relative_attention(**x, **options) ** 2).sum())
    x, v = (jax.tree.map(jnp.asarray, tree) for tree in (inputs, along))

    def slope(x):
        return sum(jnp.vdot(gradient, v[name]) for name, gradient in gradients(x).items())

    for products in (jax.jit(jax.grad(slope))(x), jax.jit(lambda x: jax.jvp(gradients, (x,), (v,))[1])(x)):
        for name, product in products.items():
            expected = (ahead[name] - behind[name]) / (2 * step)
            np.testing.assert_allclose(product, expected, rtol=1e-5, atol=1e-7, err_msg=name)
