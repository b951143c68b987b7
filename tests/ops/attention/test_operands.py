"""Batches of any size, symbolic and empty ones too; lists, numbers and NumPy arrays; and programs without jit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from posattn_jax import PositionalSelfAttention, TokenMixing, relative_attention
from tests.ops.attention.attention_suite import NATIVE, make_inputs
from tests.support.slow import slow

GRID = (4, 3)
IMPLEMENTATIONS = ("auto", "dense", "tiled", *NATIVE, "reference", "patch", "window")


def inputs_of(batch):
    """With `relative_bias`."""
    inputs = {name: jnp.asarray(x) for name, x in make_inputs(GRID, batch=max(batch, 1), dtype=np.float32).items()}
    inputs["relative_bias"] = jnp.ones((7, 5, 2))
    return {name: x[:batch] if name in ("query", "key", "value") else x for name, x in inputs.items()}


def differentiated(implementation, **options):
    options |= {"span_bound": (3, 2)} if implementation in ("patch", "window") else {}

    def loss(x):
        outputs = relative_attention(**x, grid_shape=GRID, implementation=implementation, **options)
        return (outputs**2).sum(), outputs

    return jax.jit(jax.grad(loss, has_aux=True))


def check(found, expected):
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5), found, expected)


@pytest.mark.parametrize("implementation", [slow(name) if name != "dense" else name for name in IMPLEMENTATIONS])
def test_a_symbolic_batch(unchecked, implementation):
    """One exported program for every batch: values, and gradients of every array."""
    (b,) = export.symbolic_shape("b")
    inputs, run = inputs_of(2), differentiated(implementation)
    shapes = {
        name: jax.ShapeDtypeStruct((b, *x.shape[1:]) if len(x) == 2 and x.ndim == 4 else x.shape, x.dtype)
        for name, x in inputs.items()
    }
    program = export.export(run)(shapes)
    for batch in (1, 2):
        given = inputs_of(batch)
        check(program.call(given), run(given))


@pytest.mark.slow
@pytest.mark.parametrize(
    "layer", [PositionalSelfAttention(num_heads=2), TokenMixing(num_heads=2)], ids=["attention", "mixing"]
)
def test_a_symbolic_batch_of_a_layer(unchecked, layer):
    (b,) = export.symbolic_shape("b")
    x = jax.random.normal(jax.random.key(1), (3, 4, 3, 8))
    variables = layer.init(jax.random.key(0), x)
    program = export.export(jax.jit(layer.apply))(variables, jax.ShapeDtypeStruct((b, *x.shape[1:]), x.dtype))
    for batch in (1, 3):
        check(program.call(variables, x[:batch]), layer.apply(variables, x[:batch]))


def test_symbolic_positions_are_refused(unchecked):
    b, t = export.symbolic_shape("b, t")
    layer = PositionalSelfAttention(num_heads=2)
    variables = jax.eval_shape(lambda: layer.init(jax.random.key(0), jnp.ones((1, 5, 8))))
    with pytest.raises(ValueError, match=r"grid_shape=\(t,\) .*plain numbers"):
        export.export(jax.jit(layer.apply))(variables, jax.ShapeDtypeStruct((b, t, 8), jnp.float32))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_an_empty_batch(unchecked, implementation):
    """Outputs are empty, and gradients of arrays that examples share are 0."""
    inputs = inputs_of(0)
    gradients, outputs = differentiated(implementation)(inputs)
    assert outputs.shape == inputs["value"].shape and outputs.dtype == inputs["value"].dtype
    jax.tree.map(lambda found, given: np.testing.assert_array_equal(found, np.zeros(given.shape)), gradients, inputs)


def test_weights_of_an_empty_batch(unchecked):
    outputs, weights = relative_attention(**inputs_of(0), grid_shape=GRID, return_weights=True)
    assert outputs.shape == (0, 12, 2, 2) and weights.shape == (0, 2, 12, 12)


@pytest.mark.parametrize("implementation", [*NATIVE, *map(slow, ("auto", "dense", "tiled"))])
def test_what_numpy_makes_float64(float64, implementation):
    """A scale of 1 / np.sqrt(d), and biases, next to arrays in float32."""
    inputs, options = inputs_of(1), {"grid_shape": GRID, "implementation": implementation}
    wide = {name: np.asarray(inputs[name], float) for name in ("content_bias", "position_bias")}
    expected = relative_attention(**inputs, **options)
    check(relative_attention(**inputs, **options, scale=1 / np.sqrt(2)), expected)
    check(relative_attention(**(inputs | wide), **options), expected)


@pytest.mark.parametrize("implementation", ["dense", "tiled"])
def test_a_gradient_with_a_scale_of_numpy(unchecked, float64, implementation):
    jax.eval_shape(differentiated(implementation, scale=1 / np.sqrt(2)), inputs_of(1))


def test_weights_of_an_empty_batch_have_their_dtype(float64):
    run = lambda x: relative_attention(x, x, x, grid_shape=(3,), return_weights=True)
    shapes = [jax.eval_shape(run, jax.ShapeDtypeStruct((b, 3, 1, 2), np.float32)) for b in (0, 1)]
    assert jax.tree.map(lambda x: x.dtype, shapes[0]) == jax.tree.map(lambda x: x.dtype, shapes[1])


LISTED = {
    "lengths": ({"key_value_seq_lengths": [3, 12], "query_seq_lengths": [12, 5]}, {}),
    "one length": ({"key_value_seq_lengths": 3, "query_seq_lengths": 5}, {}),
    "one sigma": ({"sigma": 0.3}, {"sigma": [0.3, 0.3]}),
    "sigma": ({"sigma": [0.3, 0.2]}, {}),
    "sigma of each head": ({"sigma": [[0.3, 0.2], [0.5, 0.6]]}, {}),
    "factor": ({"sigma": [[[0.3, 0.0], [0.1, 0.2]]]}, {}),
    "mask": ({"mask": np.tri(12, dtype=bool)[None, None].tolist()}, {}),
    "bias": ({"bias": np.eye(12)[None, None].tolist()}, {}),
    "key_mask": ({"key_mask": [[True] * 5 + [False] * 7] * 2}, {}),
    "segment_ids": ({"segment_ids": [[0] * 5 + [1] * 7] * 2}, {}),
    "integers": ({name: (np.arange(96) % 5).reshape(2, 12, 2, 2).tolist() for name in ("query", "key", "value")}, {}),
    "biases": ({"content_bias": [[0.1, 0.2]] * 2, "position_bias": [[0.1, 0.2]] * 2}, {}),
}


COSTLY = ("lengths", "sigma of each head", "factor", "one sigma", "bias", "segment_ids", "biases")


@pytest.mark.parametrize("name", [slow(name) if name in COSTLY else name for name in LISTED])
def test_what_is_like_an_array(unchecked, name):
    """Lists, numbers and NumPy arrays, in and out of jit; a concrete sigma stays known in it."""
    listed, same = LISTED[name]
    inputs = inputs_of(2) | ({} if "sigma" in listed else {"sigma": None})
    arrays = {key: jnp.asarray(same.get(key, x)) for key, x in listed.items()}
    if name == "one length":
        arrays = {key: jnp.full(2, x) for key, x in listed.items()}
    expected = relative_attention(**(inputs | arrays), grid_shape=GRID)
    as_numpy = {key: np.asarray(x, np.float32 if np.asarray(x).dtype == float else None) for key, x in listed.items()}
    for given in (listed, as_numpy):
        attend = lambda own, given=given: relative_attention(**(own | given), grid_shape=GRID)
        check(attend(inputs), expected)
        check(jax.jit(attend)(inputs), expected)
    if "sigma" in listed:  # "patch" needs it before the program runs
        jax.eval_shape(
            lambda own: relative_attention(**(own | listed), grid_shape=GRID, implementation="patch"), inputs
        )


def test_lengths_of_another_batch_are_refused(unchecked):
    with pytest.raises(ValueError, match=r"key_value_seq_lengths .*\(3,\): .*\(2,\)"):
        relative_attention(**inputs_of(2), grid_shape=GRID, key_value_seq_lengths=[1, 2, 3])


@pytest.mark.parametrize("implementation", [*NATIVE, *map(slow, ("auto", "dense", "tiled", "window"))])
def test_without_jit(implementation):
    inputs, run = inputs_of(1), differentiated(implementation)
    expected = run(inputs)
    with jax.disable_jit():
        check(run(inputs), expected)
