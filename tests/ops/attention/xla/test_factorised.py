"""Sinusoids in the queries and keys against the reference, which is given E."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax.ops.attention import Factors, Problem, attend, relative_attention
from posattn_jax.ops.attention.xla.factorised import factorised_pays
from posattn_jax.ops.attention.xla.loop import ACCELERATOR_SCORE_BYTES
from posattn_jax.ops.encodings import relative_sinusoids
from tests.support.slow import slow

B, H, D = 2, 2, 3


def make_inputs(grid_shape, num_features, dtype=np.float64):
    rng = np.random.default_rng([num_features, *grid_shape])
    features = (B, math.prod(grid_shape), H, D)
    shapes = {"query": features, "key": features, "value": features}
    shapes |= {"kernel": (num_features, H, D), "bias": (H, D), "content_bias": (H, D), "position_bias": (H, D)}
    return {name: jnp.asarray(rng.normal(size=shape), dtype) for name, shape in shapes.items()}


def factorised(inputs, grid_shape, combine="concat", **options):
    inputs = {"key": None} | {name: array for name, array in inputs.items() if name != "bias"}
    factors = Factors(inputs.pop("kernel"), combine)
    return attend(Problem(**inputs, grid_shape=grid_shape, factors=factors, **options), "factorised")[0]


def reference(inputs, grid_shape, combine="concat", reference_shape=None, **options):
    inputs = {"key": None} | inputs
    kernel, bias = inputs.pop("kernel"), inputs.pop("bias")
    sinusoids = relative_sinusoids(grid_shape, len(kernel), combine, reference_shape)
    encoding = jnp.einsum("...c,chd->...hd", sinusoids, kernel) + bias
    options |= {"reference_shape": reference_shape, "implementation": "reference"}
    return relative_attention(**inputs, grid_shape=grid_shape, relative_encoding=encoding, **options)


def check(inputs, grid_shape, tolerance=1e-10, **options):
    """Values, which it returns, and gradients of every input, E's bias included, are the reference's."""
    weights = np.random.default_rng(1).normal(size=inputs["value"].shape)

    def differentiate(attend):
        def loss(inputs):
            outputs = attend(inputs, grid_shape, **options)
            return (weights * outputs).sum(), outputs

        return jax.jit(jax.grad(loss, has_aux=True))(inputs)

    (gradients, outputs), (expected_gradients, expected) = differentiate(factorised), differentiate(reference)
    np.testing.assert_allclose(outputs, expected, rtol=tolerance, atol=tolerance)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, expected_gradients[name], rtol=tolerance, atol=tolerance, err_msg=name)
    np.testing.assert_array_equal(gradients["bias"], 0)
    return outputs


GRIDS = [((1,), 6), ((2,), 6), ((7,), 5), ((3, 2), 8), ((1, 5), 6), ((2, 1, 3), 6), ((3, 2, 2), 9)]
FAST = [((1,), 6, "sum"), ((7,), 5, "concat"), ((3, 2), 8, "sum"), ((3, 2, 2), 9, "concat")]
ALL = [(*grid, combine) for grid in GRIDS for combine in ("concat", "sum")]


@pytest.mark.parametrize(
    "grid_shape, num_features, combine", [*FAST, *(slow(*case) for case in ALL if case not in FAST)], ids=str
)
def test_values_and_gradients(float64, grid_shape, num_features, combine):
    """Odd numbers of features, in all or a dimension, included: the last frequency has a sine alone."""
    check(make_inputs(grid_shape, num_features), grid_shape, combine=combine)


@pytest.mark.parametrize(
    "grid_shape, dtype, is_causal",
    [
        ((5,), float, True),
        ((3, 2), np.float32, False),
        slow((5,), float, False),
        slow((3, 2), np.float32, True),
        slow((2, 1, 2), float, False),
        slow((2, 1, 2), float, True),
    ],
    ids=str,
)
def test_causal_padding_and_scale(float64, grid_shape, dtype, is_causal):
    """The last example has no key at all, and causal queries of the first none before its first key."""
    mask = np.random.default_rng(2).random((B, math.prod(grid_shape))) < 0.6
    mask[0, 0], mask[1] = False, False
    inputs = make_inputs(grid_shape, 6, dtype)
    tolerance = 1e-10 if dtype is float else 1e-4
    outputs = check(inputs, grid_shape, tolerance, is_causal=is_causal, key_mask=jnp.asarray(mask), scale=0.7)
    np.testing.assert_array_equal(outputs[1], 0)


@pytest.mark.parametrize("combine", ["concat", slow("sum")])
def test_reference_shape(float64, combine):
    check(make_inputs((4, 3), 8), (4, 3), reference_shape=(2, 5), combine=combine)


@pytest.mark.parametrize("left_out", [("key", "content_bias"), slow(("content_bias",)), ("position_bias",)], ids=str)
def test_terms_left_out(float64, left_out):
    inputs = make_inputs((3, 2), 2)  # fewer features than a head has
    check({name: array for name, array in inputs.items() if name not in left_out}, (3, 2))


@pytest.mark.parametrize("dtype, tolerance", [(jnp.float32, 1e-4), (jnp.bfloat16, 0.05)], ids=["float32", "bfloat16"])
def test_fewer_bits(dtype, tolerance):
    inputs = make_inputs((16, 8), 8, np.float32)
    inputs["kernel"] /= 4
    few = {name: array.astype(dtype) for name, array in inputs.items()}
    outputs = jax.jit(lambda x: factorised(x, (16, 8)))(few)
    assert outputs.dtype == dtype
    exact = jax.jit(lambda x: reference(x, (16, 8)))({name: array.astype(jnp.float32) for name, array in few.items()})
    np.testing.assert_allclose(outputs.astype(jnp.float32), exact, atol=tolerance)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"grid_shape": (5,)}, "query has shape"),
        ({"kernel": np.ones((6, H, D + 1))}, "kernel has shape"),
        ({"key_mask": np.ones((B, 3), bool)}, "key_mask has shape"),
        ({"key_mask": np.zeros((B, 4), np.float32)}, "key_mask has dtype float32"),
        ({"key": None}, "content_bias: expected key too"),
        ({"combine": "product"}, 'combine="product": .*"concat"'),
        ({"grid_shape": (2, 2), "kernel": np.ones((5, H, D))}, "num_features=5"),
        ({"reference_shape": (4, 4)}, "reference_shape="),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_arguments_are_named(unchecked, change, message):
    inputs = {name: array for name, array in make_inputs((4,), 6, np.float32).items() if name != "bias"}
    change = {name: jnp.asarray(value) if isinstance(value, np.ndarray) else value for name, value in change.items()}
    with pytest.raises(ValueError, match=message):
        options = {name: change.pop(name) for name in change.keys() - inputs.keys()}
        factorised(inputs | change, **({"grid_shape": (4,)} | options))


def test_pays_on_an_accelerator_that_holds_all_scores(monkeypatch):
    largest = math.isqrt(ACCELERATOR_SCORE_BYTES // 4)
    query = jax.ShapeDtypeStruct((1, largest, 1, 8), jnp.float32)
    longer = jax.ShapeDtypeStruct((1, largest + 1, 1, 8), jnp.float32)
    assert not factorised_pays.__wrapped__(query)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert factorised_pays.__wrapped__(query) and not factorised_pays.__wrapped__(longer)
