"""Every NNX module gives what the Linen module of its name gives with the same parameters: values and gradients."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import posattn_jax as linen
from posattn_jax import nnx as native
from tests.support.made_params import made_params
from tests.support.slow import slow

H, D, C = 4, 2, 8
SIZES = {"num_heads": H, "head_dim": D}


def pair(name, *sizes, **fields):
    """A part of both libraries; `sizes` are what Linen's learns from the tokens."""
    return getattr(linen, name)(**fields), lambda rngs: getattr(native, name)(*sizes, **fields, rngs=rngs)


def plain(name, *args, **fields):
    """A part without parameters."""
    return getattr(linen, name)(*args, **fields), lambda rngs: getattr(native, name)(*args, **fields)


def positional(encoding):
    return linen.Positional(encoding[0]), lambda rngs: native.Positional(encoding[1](rngs))


def kernel(name, kernel_shape, *sizes, **fields):
    whole = getattr(linen, name)(kernel_shape, **fields)
    return whole, lambda rngs: getattr(native, name)(kernel_shape, *sizes, **fields, rngs=rngs)


CONTENT = plain("Content")
BIASES = pair("ContentBias", H, D), pair("PositionalBias", H, D)


def both(terms, span=None, **fields):
    """The layers of both libraries, the NNX one with other parameters than Linen's."""
    own = linen.PositionalSelfAttention(
        num_heads=H, terms=tuple(one for one, _ in terms), span=None if span is None else span[0], **fields
    )

    def make(rngs):
        of_terms = tuple(other(rngs) for _, other in terms)
        of_span = None if span is None else span[1](rngs)
        return native.PositionalSelfAttention(C, num_heads=H, terms=of_terms, span=of_span, **fields, rngs=rngs)

    return own, nnx.eval_shape(lambda: make(nnx.Rngs(0)))


def twice(*arguments, **fields):
    """Products by a function of one's own."""
    return 2 * jax.lax.dot_general(*arguments, **fields)


LINE = (CONTENT, kernel("KernelEncoding", (3,), H, D), *BIASES)
LINE = (CONTENT, positional(LINE[1]), *BIASES, plain("LinearBias"), pair("LearnedDecay", H))
PLANE = (CONTENT, positional(pair("SirenEncoding", 2, H, D, learn_omega=True)), *BIASES)
SOLID = (CONTENT, positional(pair("LearnedEncoding", (2, 3, 2), H, D)), kernel("RelativeBias", (1, 3, 1), H))
SIREN = positional(pair("SirenEncoding", 2, H, D, hidden_features=3, num_layers=2, bias_init="ckconv"))
PAIRS = {
    "mask": np.tri(6, dtype=bool)[None, None],
    "bias": np.linspace(-1, 1, 36, dtype=np.float32).reshape(1, 1, 6, 6),
}

CASES = {
    "line": ((5,), LINE, None, {"num_kv_heads": 2, "normalize_qk": True}, {"is_causal": True}),
    "plane": ((2, 3), PLANE, pair("GaussianSpan", 2, H, per_head=True), {}, {"key_mask": np.ones((2, 2, 3), bool)}),
    "solid": ((2, 3, 2), SOLID, pair("GaussianSpan", 3, mode="log_add"), {"implementation": "dense"}, {}),
    "full": ((3, 2), PLANE, pair("GaussianSpan", 2, covariance="full"), {}, {"is_causal": (True, False)}),
    "full-per-head": ((3, 2), (CONTENT,), pair("GaussianSpan", 2, H, covariance="full", per_head=True), {}, {}),
    "ramp": ((3, 3), (CONTENT, SIREN), pair("RampSpan", 2, H, initial_width=0.6), {}, {"is_causal": True}),
    "flat": ((5,), (CONTENT,), pair("FlatSpan", 1, initial_width=0.4, per_head=False), {}, {}),
    "log": ((5,), (CONTENT,), pair("GaussianSpan", 1, H, covariance="log", per_head=True), {}, {}),
    "window": ((3, 3), (CONTENT, SIREN), plain("WindowSpan", (1, 1)), {"implementation": "tiled"}, {}),
    "rotary": ((4, 1), (plain("RotaryContent", base=100.0), plain("LinearBias")), None, {"head_dim": 4}, {}),
    "sinusoids": ((6,), (CONTENT, positional(pair("SinusoidalEncoding", H, D))), None, {"scale": 0.3}, PAIRS),
    "factorised": (
        (6,),
        (CONTENT, positional(pair("SinusoidalEncoding", H, D, use_bias=False))),
        None,
        {"implementation": "factorised"},
        {},
    ),
    "axial": ((2, 3), (CONTENT, positional(pair("AxialEncoding", (2, 3), H, D))), None, {"dilation": (1, 2)}, {}),
    "axial-sum": ((2, 3), (positional(pair("AxialEncoding", (2, 3), H, D, combine="sum")),), None, {}, {}),
    "products": ((4,), (CONTENT,), None, {"use_bias": False, "precision": "highest", "dot_general": twice}, {}),
    "segments": ((6,), (CONTENT,), None, {"dtype": jnp.float32}, {"segment_ids": np.array([[0, 0, 1, 1, 1, 2]] * 2)}),
    "class-tokens": ((2, 3), (CONTENT, SIREN), None, {}, {"num_class_tokens": 1}),
    "reference": ((2, 3), (CONTENT, SIREN), pair("GaussianSpan", 2), {}, {"reference_shape": (3, 4)}),
    "bound": ((4, 4), (CONTENT, SIREN), pair("GaussianSpan", 2, initial_sigma=0.2), {}, {"span_bound": (2, 2)}),
    "kernel-drop": ((4,), (CONTENT, positional(kernel("KernelEncoding", (3,), H, D, outside="drop"))), None, {}, {}),
}
FAST = ("plane",)


@pytest.mark.parametrize("name", [name if name in FAST else slow(name) for name in CASES])
def test_values_and_gradients(name):
    grid_shape, terms, span, fields, options = CASES[name]
    own, layer = both(terms, span, **fields)
    rng = np.random.default_rng(0)
    num_tokens = math.prod(grid_shape) + options.get("num_class_tokens", 0)
    inputs = jnp.asarray(rng.normal(size=(2, num_tokens, C)), jnp.float32)
    weights = jnp.asarray(rng.normal(size=inputs.shape), jnp.float32)
    options = {name: jnp.asarray(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}
    params = made_params(lambda: own.init(jax.random.key(0), inputs, grid_shape, **options)["params"])
    shapes = nnx.to_pure_dict(nnx.state(layer, nnx.Param))
    assert jax.tree.map(jnp.shape, shapes) == jax.tree.map(jnp.shape, params)
    nnx.update(layer, params)

    @jax.jit
    @jax.value_and_grad
    def of_linen(params, inputs):
        return jnp.sum(weights * own.apply({"params": params}, inputs, grid_shape, **options))

    @nnx.jit
    @nnx.value_and_grad
    def of_nnx(layer, inputs):
        return jnp.sum(weights * layer(inputs, grid_shape, **options))

    expected, of_params = of_linen(params, inputs)
    loss, of_layer = of_nnx(layer, inputs)
    np.testing.assert_allclose(loss, expected, rtol=1e-5, atol=1e-5)
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5),
        nnx.to_pure_dict(of_layer),
        of_params,
    )
