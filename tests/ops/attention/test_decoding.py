"""Attention step by step: a ring as long as the span gives what causal attention gives, and refuses what it cannot."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax import (
    Cache,
    Content,
    ContentBias,
    GaussianSpan,
    GeluGate,
    KernelEncoding,
    KeyPositional,
    LearnedEncoding,
    LinearBias,
    PlusDepthwise,
    Positional,
    PositionalBias,
    PositionalSelfAttention,
    RampSpan,
    RelativeBias,
    RotaryContent,
    Scores,
    SinusoidalEncoding,
    SirenEncoding,
    SpanConvolution,
    Translution,
    WindowSpan,
    cache_length,
)
from posattn_jax.nn.values import DepthwiseConvolution
from posattn_jax.ops import grid
from posattn_jax.ops.attention import decode, table_shape
from posattn_jax.ops.span import half_span
from tests import oracle
from tests.ops.attention.attention_suite import B, D, H, make_inputs
from tests.support.made_params import made_params
from tests.support.slow import slow

OF_A_PLACE = ("query", "key", "value")


def test_a_cache_of_no_places():
    with pytest.raises(ValueError, match="length=0: expected at least 1"):
        Cache.empty(B, 0, H, D)


def decode_all(inputs, grid_shape, length, **options):
    """The outputs of every place, one after the other; tables are cut to what the cache can meet."""
    given = {name: jnp.asarray(array) for name, array in inputs.items()}
    near = [size - 1 for size in table_shape(grid_shape, length)]
    for name in ("relative_encoding", "relative_bias"):
        if name in given:
            given[name] = grid.centre(given[name], near)
    places = {name: jnp.moveaxis(given.pop(name), 1, 0)[:, :, None] for name in OF_A_PLACE if name in given}
    cache = Cache.empty(B, length, H, D, places["value"].dtype)

    def step(cache, one):
        outputs, cache = decode(
            one["query"], one.get("key"), one["value"], cache, grid_shape=grid_shape, **given, **options
        )
        return cache, outputs[:, 0]

    cache, outputs = jax.jit(lambda places: jax.lax.scan(step, cache, places))(places)
    return cache, np.moveaxis(np.asarray(outputs), 0, 1)


def causal_oracle(inputs, grid_shape, **options):
    one_value_each = {name: np.asarray(array, complex)[..., None] for name, array in inputs.items()}
    return oracle.attention(one_value_each, grid_shape, is_causal=True, **options)[..., 0].real


@pytest.mark.parametrize(
    "grid_shape, made, options",
    [
        ((9,), {}, {}),
        ((9,), {"per_head": True}, {"span_mode": "log_add", "threshold": 0.3, "scale": 0.7}),
        slow((9,), {"span": False}, {}),
        slow((9,), {}, {"threshold": 0.0}),
        slow((9,), {}, {"reference_shape": (17,)}),
        ((1,), {}, {}),
        ((2,), {"covariance": "full"}, {}),
        ((4, 3), {"covariance": "full", "per_head": True}, {}),
        ((3, 1, 3), {}, {}),
    ],
)
def test_steps_are_causal_attention(float64, grid_shape, made, options):
    inputs = make_inputs(grid_shape, **made)
    inputs["relative_bias"] = np.random.default_rng(1).normal(size=(*(2 * size - 1 for size in grid_shape), H))
    half = None
    if "sigma" in inputs:
        inputs["sigma"] /= 2 if len(grid_shape) == 1 else 1
        half = np.asarray(
            half_span(
                jnp.asarray(inputs["sigma"]), options.get("threshold", 0.1), grid_shape, options.get("reference_shape")
            )
        )
        half = half.reshape(-1, len(grid_shape)).max(0).astype(int).tolist()
    length = cache_length(grid_shape, half)
    cache, outputs = decode_all(inputs, grid_shape, length, **options)
    expected = causal_oracle(inputs, grid_shape, **options)
    np.testing.assert_allclose(outputs, expected, rtol=1e-10, atol=1e-10)
    assert int(cache.step) == math.prod(grid_shape) and cache.length == length
    if grid_shape == (9,) and not options:
        assert length == (9 if half is None else half[0] + 1) and (half is None or length < 9)


@pytest.mark.parametrize("low", [-np.inf, np.finfo(np.float64).min])
def test_a_relative_bias_that_hides(float64, low):
    """As a mask of the offsets, whatever G is: also a place that sees nothing. Gradients are finite."""
    inputs = make_inputs((9,)) | {"sigma": np.array([0.02])}
    hidden = np.random.default_rng(2).random((17, H)) < 0.4
    hidden[8] = True, False
    inputs["relative_bias"] = np.where(hidden, low, 0.5)
    shown = np.moveaxis(np.asarray(grid.toeplitz(jnp.asarray(~hidden), (9,))), -1, 0)[None]
    _, outputs = decode_all(inputs, (9,), 9, threshold=0.0)
    expected = causal_oracle(inputs, (9,), threshold=0.0, mask=shown)
    np.testing.assert_allclose(outputs, expected, rtol=1e-10, atol=1e-10)
    first = {name: jnp.asarray(x[:, :1]) for name, x in inputs.items() if name in OF_A_PLACE}
    rest = {name: jnp.asarray(x) for name, x in inputs.items() if name not in OF_A_PLACE}

    def total(x):
        cache = Cache.empty(B, 9, H, D, jnp.float64)
        return decode(**first, cache=cache, grid_shape=(9,), threshold=0.0, **x)[0].sum()

    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves(jax.jit(jax.grad(total))(rest)))


@pytest.mark.parametrize("left_out", [("key", "content_bias"), ("relative_encoding", "position_bias")])
def test_terms_may_be_left_out(float64, left_out):
    inputs = {name: array for name, array in make_inputs((5,)).items() if name not in left_out}
    _, outputs = decode_all(inputs, (5,), 5)
    expected = causal_oracle(inputs, (5,))
    np.testing.assert_allclose(outputs, expected, rtol=1e-10, atol=1e-10)


def test_places_beyond_the_grid_see_as_far_as_those_on_it(float64):
    """20 places of the unit of 9 are those of a grid of 20 in this unit; rows follow those of a grid likewise."""
    inputs = make_inputs((20,)) | {"sigma": np.array([0.15])}
    _, outputs = decode_all(inputs, (9,), 4)
    expected = causal_oracle(inputs, (20,), reference_shape=(9,))
    np.testing.assert_allclose(outputs, expected, rtol=1e-10, atol=1e-10)
    inputs = make_inputs((5, 3), span=False)
    _, outputs = decode_all(inputs, (2, 3), 6)
    places = oracle.positions((5, 3))
    offsets = np.array([[np.subtract(s, t) for s in places] for t in places])
    cached = np.subtract.outer(np.arange(15), np.arange(15)) < 6  # the slots of a cache of 6
    expected = causal_oracle(inputs, (5, 3), mask=((np.abs(offsets[..., 0]) < 2) & cached)[None, None])
    np.testing.assert_allclose(outputs, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("grid_shape, half, length", [((9,), 1, 2), ((3, 4), 1, 6)])
def test_a_cache_that_is_too_short_for_the_span_gives_nan(float64, grid_shape, half, length):
    sigma = [half / math.sqrt(-2 * math.log(0.1)) / max(size - 1, 1) * 0.999 for size in grid_shape]
    inputs = make_inputs(grid_shape) | {"sigma": np.array(sigma)}
    assert cache_length(grid_shape, (half,) * len(grid_shape)) == length
    assert np.isfinite(decode_all(inputs, grid_shape, length)[1]).all()
    assert np.isnan(decode_all(inputs, grid_shape, length - 1)[1]).all()


@pytest.mark.parametrize("span, length, expected", [(False, 8, "expected exactly 9"), (True, 10, "expected at most 9")])
def test_caches_that_do_not_fit(span, length, expected):
    with pytest.raises(ValueError, match=expected):
        decode_all(make_inputs((9,), span=span, dtype=np.float32), (9,), length)


ALL = (Content(), Positional(SirenEncoding()), ContentBias(), PositionalBias())
LAYERS = {
    "siren": {"terms": ALL, "span": GaussianSpan(initial_sigma=0.1, per_head=True)},
    "sinusoids, window": {"terms": (Content(), Positional(SinusoidalEncoding())), "span": WindowSpan((3,))},
    "rope": {"terms": (RotaryContent(),), "span": GaussianSpan(initial_sigma=0.2, mode="log_add")},
    "rope without a span": {"terms": (RotaryContent(), LinearBias())},
    "tables, gate": {"terms": (Content(), Positional(LearnedEncoding()), RelativeBias((5,))), "gate": GeluGate()},
    "ramp": {"terms": (*ALL, LinearBias()), "span": RampSpan(initial_width=0.3)},
    "no content": {"terms": (Positional(KernelEncoding((3,))),), "span": WindowSpan((2,))},
    "no unmasked threshold": {"terms": ALL, "span": GaussianSpan(threshold=0.0)},
}

ALIKE = ("siren", "sinusoids, window", "rope", "no content", "no unmasked threshold")


def steps_of(layer, variables, inputs, grid_shape, length):
    cache = Cache.empty(len(inputs), length, layer.num_heads, inputs.shape[-1] // layer.num_heads)

    @jax.jit
    def step(x, cache):
        fields = {"is_causal": True, "cache": cache, "return_intermediates": True}
        outputs, intermediates = layer.apply(variables, x[:, None], grid_shape, **fields)
        return outputs[:, 0], intermediates["cache"]

    outputs = []
    for x in jnp.moveaxis(inputs, 1, 0):
        out, cache = step(x, cache)
        outputs.append(out)
    return jnp.stack(outputs, 1)


@pytest.mark.parametrize(
    "name, grid_shape",
    [
        *(slow(name, (11,)) if name in ALIKE else (name, (11,)) for name in LAYERS),
        ("siren", (3, 4)),
        *(slow(name, (3, 4)) for name in LAYERS if name != "siren"),
    ],
)
def test_layers_go_step_by_step(name, grid_shape):
    parts = dict(LAYERS[name])
    p = len(grid_shape)
    if p == 2:
        if isinstance(parts.get("span"), WindowSpan):
            parts["span"] = WindowSpan((1, 2))
        kernels = {5: (5, 3), 3: (3, 3)}
        shaped = {RelativeBias: lambda term: RelativeBias(kernels[term.kernel_shape[0]])}
        parts["terms"] = tuple(shaped.get(type(term), lambda same: same)(term) for term in parts["terms"])
        if name == "no content":
            parts["terms"] = (Positional(KernelEncoding((3, 3))),)
    layer = PositionalSelfAttention(num_heads=2, implementation="reference", **parts)
    inputs = jax.random.normal(jax.random.key(1), (2, math.prod(grid_shape), 16))
    variables = made_params(lambda: layer.init(jax.random.key(0), inputs, grid_shape))
    whole = functools.partial(layer.apply, grid_shape=grid_shape, is_causal=True, return_intermediates=True)
    expected, found = jax.jit(whole)(variables, inputs)
    half = None
    if "sigma" in found and layer.span.threshold > 0:
        half = half_span(found["sigma"], layer.span.threshold, grid_shape).reshape(-1, p).max(0).astype(int).tolist()
    outputs = steps_of(layer, variables, inputs, grid_shape, cache_length(grid_shape, half))
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_cache_does_not_grow_with_the_text():
    """Bytes of the compiled step: of a cache of 4 places the same for 64 and for 256."""
    layer = PositionalSelfAttention(num_heads=2, span=WindowSpan((3,)))
    sizes = []
    for length in (64, 256):
        variables = jax.eval_shape(lambda n=length: layer.init(jax.random.key(0), jnp.ones((1, n, 8)), (n,)))
        step = functools.partial(layer.apply, grid_shape=(length,), is_causal=True, return_intermediates=True)
        cache = Cache.empty(1, cache_length((length,), (3,)), 2, 4)
        lowered = jax.jit(lambda v, x, c, step=step: step(v, x, cache=c)).lower(variables, jnp.ones((1, 1, 8)), cache)
        memory = lowered.compile().memory_analysis()
        sizes.append(memory.temp_size_in_bytes + memory.output_size_in_bytes + memory.argument_size_in_bytes)
    assert sizes[0] == sizes[1]


def near(query, key, tokens):
    """A term that shows only neighbours."""
    return Scores(limit=(1,))


near.needs = ()


@pytest.mark.parametrize(
    "parts, fields, expected",
    [
        ({}, {"is_causal": False}, "without is_causal=False"),
        ({}, {"key_mask": jnp.ones((1, 1), bool)}, "without key_mask"),
        ({}, {"inputs": jnp.ones((1, 2, 8))}, "without inputs of 2 positions"),
        ({}, {"return_weights": True}, "no attention weights and no .*dropout"),
        ({}, {"span_bound": (2,)}, "without span_bound"),
        ({}, {"cache": Cache.empty(1, 3, 1, 4)}, "cache of 1 heads: expected 2"),
        ({}, {"cache": Cache.empty(2, 3, 2, 4)}, r"cache of shape \(2, 3, 2, 4\): expected \[1 s k 4\]"),
        ({"terms": (Content(), near)}, {}, "cache: expected no pair_scores and no limit"),
        ({"terms": (KeyPositional(KernelEncoding((3,))),)}, {}, "cache: expected None with KeyPositional"),
        ({"values": PlusDepthwise(DepthwiseConvolution((3,)))}, {}, "cache: .*DepthwiseConvolution"),
        ({"values": Translution()}, {}, "cache: expected None with Translution"),
        ({"extra_heads": SpanConvolution((3,)), "head_dim": 2}, {}, "without extra_heads"),
    ],
)
def test_what_cannot_go_step_by_step(parts, fields, expected):
    layer = PositionalSelfAttention(**({"num_heads": 2, "span": WindowSpan((2,))} | parts))
    variables = jax.eval_shape(lambda rng: layer.init(rng, jnp.ones((1, 5, 8)), (5,)), jax.random.key(0))
    given = {"inputs": jnp.ones((1, 1, 8)), "is_causal": True, "cache": Cache.empty(1, 3, 2, 4)} | fields
    with pytest.raises(ValueError, match=expected):
        jax.eval_shape(lambda variables: layer.apply(variables, grid_shape=(5,), **given), variables)
