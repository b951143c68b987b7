import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax.ops.attention import relative_attention
from tests.ops.attention.attention_suite import B, D, H, make_inputs
from tests.support.slow import slow


@pytest.mark.parametrize(
    "change, message",
    [
        ({"grid_shape": (5,)}, "query has shape"),
        ({"grid_shape": 4, "sigma": 0.3}, "grid_shape is 4: "),
        ({"grid_shape": (1, 1, 1, 4)}, "one to 3"),
        ({"grid_shape": (0,)}, "at least 1"),
        ({"relative_encoding": np.ones((4, H, D))}, "relative_encoding has shape"),
        ({"relative_encoding": None}, "position_bias: .*relative_encoding"),
        ({"sigma": np.ones(2)}, "sigma has shape"),
        ({"threshold": 1.0}, "threshold=1.0"),
        ({"span_mode": "divide"}, 'span_mode="divide"'),
        ({"key_mask": np.ones((B, 3), bool)}, "key_mask has shape"),
        ({"key_mask": np.zeros((B, 4), np.float32)}, "key_mask has dtype float32"),
        ({"key_mask": np.ones((B, 4), np.int32)}, "key_mask has dtype int32"),
        ({"mask": np.ones((4, 4), bool)}, r"mask has shape \(4, 4\)"),
        ({"mask": np.ones((1, 1, 4, 4))}, "mask has dtype float32"),
        ({"bias": np.ones((2, 2, 4, 3))}, r"bias has shape \(2, 2, 4, 3\)"),
        ({"scale": float("nan")}, "scale=nan: expected a finite number"),
        ({"scale": "half"}, "scale='half': expected a finite number"),
        ({"bias": np.ones((1, 1, 4, 4)), "scale": 0.0}, "scale=0 .*bias"),
        ({"bias": np.ones((1, 1, 4, 4)), "scale": -0.5}, "scale=-0.5 .*bias"),
        (
            {"relative_bias": np.ones((7, H)), "scale": -0.5},
            "scale=-0.5 .*relative_bias",
        ),
        ({"is_causal": (True, False)}, r"is_causal=\(True, False\): .*1, one per"),
        ({"is_causal": 1}, "is_causal=1: expected a bool"),
        ({"is_causal": np.array(True)}, "is_causal=True: expected a bool"),
        ({"segment_ids": np.ones((B, 3), np.int32)}, r"segment_ids has shape \(2, 3\)"),
        ({"value": np.ones((B, 4, 3, D))}, f"value has 3 heads: .*{H}"),
        ({"dropout_rate": 1.0}, "dropout_rate=1.0"),
        ({"dropout_rate": 0.5}, "needs dropout_rng"),
        ({"reference_shape": (4, 4)}, "reference_shape="),
        ({"reference_shape": (1,)}, r"reference_shape=\(1,\)"),
        ({"span_bound": (0,)}, r"span_bound=\(0,\): smaller than the half-span"),
        ({"span_bound": (4, 4)}, "expected 1 half-spans"),
        ({"span_bound": (4,), "sigma": None}, "without sigma"),
        (
            {"implementation": "fast"},
            'implementation="fast": .*reference',
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_arguments_are_named(unchecked, change, message):
    arguments = {name: jnp.asarray(array) for name, array in make_inputs((4,), dtype=np.float32).items()}
    arguments |= {name: jnp.asarray(v) if isinstance(v, np.ndarray) else v for name, v in change.items()}
    grid_shape = arguments.pop("grid_shape", (4,))
    with pytest.raises(ValueError, match=message):
        relative_attention(**arguments, grid_shape=grid_shape)


PLAIN = {
    "causal": {"is_causal": True},
    "mask": {"mask": "mask"},
    "mask and bias of some heads": {"mask": "mask", "bias": "bias", "is_causal": True},
    "lengths": {"query_seq_lengths": "query_lengths", "key_value_seq_lengths": "key_lengths"},
    "scale": {"scale": 0.3},
}


CASES = [*((case, 2) for case in PLAIN), ("causal", 4), ("mask and bias of some heads", 1)]
CASES += [slow(*case) for case in itertools.product(PLAIN, (4, 2, 1)) if case not in CASES]


@pytest.mark.parametrize("case, num_kv_heads", CASES)
def test_without_positions_it_is_jaxs(case, num_kv_heads):
    """Values and gradients of `jax.nn.dot_product_attention`, whose names these arguments have."""
    b, t, h, d = 2, 7, 4, 3
    rng = np.random.default_rng(0)
    query, bias = (jnp.asarray(rng.normal(size=size), jnp.float32) for size in ((b, t, h, d), (1, h, t, t)))
    key, value = jnp.asarray(rng.normal(size=(2, b, t, num_kv_heads, d)), jnp.float32)
    given = {"mask": jnp.asarray(rng.random((b, 1, t, t)) < 0.7).at[..., 0].set(True), "bias": bias}
    given |= {"query_lengths": jnp.array([7, 4]), "key_lengths": jnp.array([3, 7])}
    options = {name: given[value] if isinstance(value, str) else value for name, value in PLAIN[case].items()}

    def results(attention, **more):
        def loss(query, key, value):
            outputs = attention(query, key, value, **options, **more)
            return (outputs**2).sum(), outputs

        return jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(query, key, value)

    expected = results(jax.nn.dot_product_attention)
    found = results(relative_attention, grid_shape=(t,))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), found, expected)


def test_weights_beyond_a_querys_length_are_0():
    x = jnp.ones((1, 4, 2, 3))
    lengths = {"query_seq_lengths": jnp.array([3]), "key_value_seq_lengths": jnp.array([2])}
    attend = jax.jit(lambda x: relative_attention(x, x, x, grid_shape=(4,), return_weights=True, **lengths))
    outputs, weights = map(np.asarray, attend(x))
    np.testing.assert_array_equal(weights[0, 0], [[0.5, 0.5, 0, 0]] * 3 + [[0, 0, 0, 0]])
    np.testing.assert_array_equal(outputs[0, :, 0, 0], [1, 1, 1, 0])


def test_segments_are_sentences_one_by_one(float64):
    """Values and gradients of a packed row, with positions and a span, are those of its sentences on their own."""
    lengths, n, h, d = (3, 1, 5), 9, 2, 4
    query, key, value = jax.random.normal(jax.random.key(0), (3, 1, n, h, d))
    encoding = jax.random.normal(jax.random.key(1), (2 * n - 1, h, d))
    sigma = jnp.array([0.3])

    def packed(query, key, value, encoding):
        ids = jnp.repeat(jnp.arange(3), jnp.array(lengths), total_repeat_length=n)[None]
        options = {"grid_shape": (n,), "relative_encoding": encoding, "sigma": sigma, "segment_ids": ids}
        return relative_attention(query, key, value, **options)

    def alone(query, key, value, encoding):
        outputs, start = [], 0
        for length in lengths:
            of_sentence = (x[:, start : start + length] for x in (query, key, value))
            near = encoding[n - length : n + length - 1]
            options = {"relative_encoding": near, "sigma": sigma, "reference_shape": (n,)}
            outputs.append(relative_attention(*of_sentence, grid_shape=(length,), **options))
            start += length
        return jnp.concatenate(outputs, 1)

    both = [
        jax.jit(jax.value_and_grad(lambda *x, f=f: (f(*x) ** 2).sum(), (0, 1, 2, 3)))(query, key, value, encoding)
        for f in (packed, alone)
    ]
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-12), *both)


@pytest.mark.parametrize("sigma", [None, 0.16])
def test_a_low_bias_that_does_not_hide_is_no_lower_because_of_the_scale(sigma):
    """-1e8 / scale, which is -8e8 here, would hide."""
    zeros = jnp.zeros((1, 2, 1, 64))
    value = zeros + jnp.array([1.0, 3.0])[None, :, None, None]
    attend = lambda **bias: relative_attention(zeros, zeros, value, grid_shape=(2,), sigma=sigma, threshold=0.0, **bias)
    lows = np.full((2, 2), -1e8)
    np.testing.assert_allclose(
        attend(bias=lows[None, None])[0, :, 0, 0], attend(relative_bias=np.full((3, 1), -1e8))[0, :, 0, 0]
    )
    lows[0, 0] = lows[1] = 0
    weight = 1 / (1 + np.exp(1e8 * np.exp(-0.5 / sigma**2))) if sigma else 0  # of the low key
    expected = [1 + 2 * weight, 2]
    np.testing.assert_allclose(attend(bias=lows[None, None])[0, :, 0, 0], expected, rtol=1e-4)
