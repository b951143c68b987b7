"""The parts of Chang 2021 in the attention layer: against loops, and against what they are special cases of."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax.nn.attention import PositionalSelfAttention
from posattn_jax.nn.encodings import KernelEncoding
from posattn_jax.nn.projections import ConvolutionalProjections
from posattn_jax.nn.span import GaussianSpan
from posattn_jax.nn.span_convolution import SpanConvolution
from posattn_jax.nn.terms import Content, KeyPositional, Positional, RelativeBias
from posattn_jax.nn.values import DepthwiseConvolution, PlusDepthwise
from tests import oracle
from tests.support.made_params import made_params
from tests.support.slow import slow

B, H, C = 2, 2, 4
D = C // H
noise = nn.initializers.normal(1.0)


def kernel(grid_shape, size=3):
    return (size,) * len(grid_shape)


def apply(layer, grid_shape, cls=0, **options):
    """Random inputs and parameters, and what the layer makes of them."""
    inputs = jax.random.normal(jax.random.key(0), (B, cls + math.prod(grid_shape), C))
    variables = made_params(lambda: layer.init(jax.random.key(1), inputs, grid_shape, num_class_tokens=cls), 1.0)
    run = jax.jit(
        lambda variables: layer.apply(
            variables, inputs, grid_shape, num_class_tokens=cls, return_intermediates=True, **options
        )
    )
    return inputs, variables, run(variables)


TERMS = {
    "fixed": lambda shape, outside: RelativeBias(shape, outside, param_dtype=jnp.float64),
    "dynamic": lambda shape, outside: Positional(KernelEncoding(shape, outside, param_dtype=jnp.float64)),
    "key": lambda shape, outside: KeyPositional(KernelEncoding(shape, outside, param_dtype=jnp.float64)),
}


@pytest.mark.parametrize(
    "grid_shape, kinds, outside",
    [
        ((5,), ("fixed",), "drop"),
        slow((5,), ("dynamic",), "clip"),
        slow((5,), ("key",), "clip"),
        ((5,), ("key", "dynamic"), "drop"),
        ((2, 3), ("fixed", "dynamic"), "clip"),
        slow((2, 3), ("fixed", "dynamic"), "drop"),
        ((2, 3), ("key",), "drop"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) and isinstance(value[0], str) else str(value),
)
def test_logits_of_a_layer(float64, grid_shape, kinds, outside):
    """The weights are softmax of the paper's sums, pair by pair; values, and gradients of every parameter."""
    layer = PositionalSelfAttention(
        H, terms=(Content(), *(TERMS[kind](kernel(grid_shape), outside) for kind in kinds)), param_dtype=jnp.float64
    )
    inputs, variables, (_, made) = apply(layer, grid_shape, return_weights=True)
    params, where, n = variables["params"], oracle.positions(grid_shape), math.prod(grid_shape)
    given = {"projections": np.asarray(params["projections"]["kernel"])}
    bias = np.asarray(params["projections"]["bias"])
    for i, kind in enumerate(kinds):
        own = params[f"terms_{i + 1}"]
        given[kind] = np.asarray(own["beta"] if kind == "fixed" else own["encoding"]["table"], float)
    mixed = np.random.default_rng(0).normal(size=(B, H, n, n))

    def scores(given):
        x = np.asarray(inputs)
        query, key = (
            np.einsum("btc,chdx->bthdx", x, given["projections"][:, i]) + bias[i][..., None] for i in range(2)
        )
        weights = np.zeros((B, H, n, n, query.shape[-1]), complex)
        for b, h, t in np.ndindex(B, H, n):
            for s in range(n):
                a = sum(query[b, t, h, f] * key[b, s, h, f] for f in range(D)) / math.sqrt(D)
                offset = [k - q for k, q in zip(where[s], where[t], strict=True)]
                for kind in kinds:
                    way = [-o for o in offset] if kind == "key" else offset
                    clipped = [max(-1, min(1, o)) for o in way]
                    if outside == "drop" and clipped != way:
                        continue
                    entry = tuple(o + 1 for o in clipped)
                    if kind == "fixed":
                        a = a + given[kind][(*entry, h)]
                    else:
                        side = key[b, s, h] if kind == "key" else query[b, t, h]
                        a = a + sum(side[f] * given[kind][(*entry, 0, f)] for f in range(D)) / math.sqrt(D)
                weights[b, h, t, s] = np.exp(a)
            weights[b, h, t] /= weights[b, h, t].sum(0)
        return mixed[..., None] * weights

    expected, expected_gradients = oracle.value_and_gradients(scores, given)

    def loss(params):
        weights = layer.apply({"params": params}, inputs, grid_shape, return_weights=True)[1]["weights"]
        return (mixed * weights).sum()

    np.testing.assert_allclose(mixed * made["weights"], expected, rtol=1e-10, atol=1e-12)
    gradients = jax.jit(jax.grad(loss))(params)
    tables = {
        kind: gradients[f"terms_{i + 1}"]["beta"]
        if kind == "fixed"
        else gradients[f"terms_{i + 1}"]["encoding"]["table"]
        for i, kind in enumerate(kinds)
    }
    np.testing.assert_allclose(
        gradients["projections"]["kernel"], expected_gradients["projections"], rtol=1e-9, atol=1e-10
    )
    for kind, table in tables.items():
        np.testing.assert_allclose(table, expected_gradients[kind], rtol=1e-9, atol=1e-10, err_msg=kind)


def test_beyond_the_kernel_a_dropped_term_is_zero(float64):
    """A fixed convolution alone then has equal weights there, whatever its numbers."""
    layer = PositionalSelfAttention(H, terms=(RelativeBias((3,), "drop", noise, jnp.float64),))
    _, variables, (_, made) = apply(layer, (6,), return_weights=True)
    logits = np.log(np.asarray(made["weights"]))
    far = logits[:, :, 0, 2:]
    np.testing.assert_allclose(far - far[..., :1], 0, atol=1e-12)
    np.testing.assert_allclose(logits[0, :, 0, 1] - far[0, :, 0], variables["params"]["terms_0"]["beta"][2], atol=1e-10)


@pytest.mark.parametrize(
    "grid_shape, cls", [((6,), 0), ((3, 4), 1), slow((6,), 1), slow((3, 4), 0), slow((2, 1, 3), 0), slow((2, 1, 3), 1)]
)
def test_depthwise_after_softmax_is_attention_plus_a_convolution(float64, grid_shape, cls):
    """Values and gradients equal those of the layer without it, plus `flax.linen.Conv` of its values."""
    shape = kernel(grid_shape)
    plus = PlusDepthwise(DepthwiseConvolution(shape, noise, param_dtype=jnp.float64))
    layer, plain = (
        PositionalSelfAttention(H, values=values, use_output=False, param_dtype=jnp.float64) for values in (plus, None)
    )
    n = cls + math.prod(grid_shape)
    mask = jnp.asarray(np.random.default_rng(0).random((B, n)) < 0.8)
    inputs, variables, _ = apply(layer, grid_shape, cls)
    convolution = nn.Conv(C, shape, feature_group_count=C, param_dtype=jnp.float64)

    def one(params):
        return layer.apply({"params": params}, inputs, grid_shape, key_mask=mask, num_class_tokens=cls)

    def other(params):
        own = {"projections": params["projections"]}
        attended = plain.apply({"params": own}, inputs, grid_shape, key_mask=mask, num_class_tokens=cls)
        value = jnp.einsum("btc,chd->bthd", inputs, params["projections"]["kernel"][:, 2])
        value = (value + params["projections"]["bias"][2]).reshape(B, n, C) * mask[..., None]
        convolved = convolution.apply(
            {"params": params["values"]["convolution"]["convolution"]}, value[:, cls:].reshape(B, *grid_shape, C)
        )
        return attended + jnp.pad(convolved.reshape(B, -1, C), [(0, 0), (cls, 0), (0, 0)])

    weights = jax.random.normal(jax.random.key(5), (B, n, C))

    def differentiate(function):
        def loss(params):
            outputs = function(params)
            return (weights * outputs).sum(), outputs

        return jax.jit(jax.grad(loss, has_aux=True))(variables["params"])

    gradients, expected = differentiate(one), differentiate(other)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10), gradients, expected)


@pytest.mark.parametrize("grid_shape", [(3, 2), slow((6,))], ids=str)
def test_half_of_the_heads_are_convolved(float64, grid_shape):
    shape = kernel(grid_shape)
    projections = ConvolutionalProjections(shape, ("query", "value"), param_dtype=jnp.float64)
    layer = PositionalSelfAttention(3, head_dim=2, projections=projections, param_dtype=jnp.float64)
    inputs, variables, (outputs, _) = apply(layer, grid_shape)
    params = variables["params"]
    own = params["projections"]
    made = {"key": jnp.einsum("btc,cnhd->bthd", inputs, own["linear"]["kernel"]) + own["linear"]["bias"][0]}
    for part in ("query", "value"):
        convolution = nn.Conv(C, shape, feature_group_count=C, param_dtype=jnp.float64)
        variables = {"params": own[f"{part}_depthwise"]["convolution"]}
        convolved = convolution.apply(variables, inputs.reshape(B, *grid_shape, C)).reshape(inputs.shape)
        assert own[f"{part}_pointwise"]["kernel"].shape == (C, 1, 1, 2)
        assert own[f"{part}_linear"]["kernel"].shape == (C, 1, 2, 2)
        first, rest = (
            jnp.einsum("btc,chd->bthd", x, own[f"{part}_{name}"]["kernel"][:, 0]) + own[f"{part}_{name}"]["bias"][0]
            for name, x in (("pointwise", convolved), ("linear", inputs))
        )
        made[part] = jnp.concatenate([first, rest], 2)
    weights = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", made["query"], made["key"]) / math.sqrt(2))
    attended = jnp.einsum("bhts,bshd->bthd", weights, made["value"])
    expected = jnp.einsum("bthd,hdc->btc", attended, params["output"]["kernel"]) + params["output"]["bias"]
    np.testing.assert_allclose(outputs, expected, rtol=1e-9, atol=1e-10)


EVERYTHING = {
    "extra_heads": SpanConvolution((3,)),
    "terms": (
        Content(),
        RelativeBias((3,)),
        Positional(KernelEncoding((3,))),
        KeyPositional(KernelEncoding((5,), "drop")),
    ),
    "values": PlusDepthwise(DepthwiseConvolution((3,))),
    "projections": ConvolutionalProjections((3,)),
}


def test_padding_changes_no_real_token(float64):
    """Nor does it matter what stands there."""
    layer = PositionalSelfAttention(H, **EVERYTHING)
    inputs, variables, _ = apply(layer, (7,))
    mask = jnp.arange(7) < jnp.array([4, 6])[:, None]
    run = jax.jit(lambda inputs: layer.apply(variables, inputs, (7,), key_mask=mask))
    outputs, other = run(inputs), run(jnp.where(mask[..., None], inputs, 1e3))
    np.testing.assert_array_equal(np.where(mask[..., None], outputs, 0), np.where(mask[..., None], other, 0))
    shorter = jax.jit(lambda inputs: layer.apply(variables, inputs, (4,)))(inputs[:1, :4])
    np.testing.assert_allclose(outputs[0, :4], shorter[0], rtol=1e-10, atol=1e-10)


@pytest.mark.slow
def test_with_a_span_and_a_larger_grid():
    """All of it together runs within a learned span, and on a grid larger than that of the training."""
    layer = PositionalSelfAttention(H, span=GaussianSpan(), **EVERYTHING)
    inputs, variables, (outputs, made) = apply(layer, (7,))
    assert outputs.shape == inputs.shape and np.isfinite(outputs).all() and made["sigma"].shape == (1,)
    run = jax.jit(lambda inputs: layer.apply(variables, inputs, (14,), reference_shape=(7,)))
    longer, _ = run(jnp.tile(inputs, (1, 2, 1)))
    assert np.isfinite(longer).all()


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"terms": (RelativeBias((4,)),)}, r"kernel_shape=\(4,\)"),
        ({"terms": (Content(), Positional(KernelEncoding((3, 3))))}, r"kernel_shape=\(3, 3\)"),
        ({"values": PlusDepthwise(DepthwiseConvolution((2,)))}, r"kernel_shape=\(2,\)"),
        ({"num_heads": 1, "projections": ConvolutionalProjections((3,))}, "num_heads=1: half of the heads"),
        ({"terms": (Content(), Content())}, "two terms give key, .*: expected one"),
        ({"extra_heads": SpanConvolution((4,))}, r"kernel_shape=\(4,\)"),
        ({"extra_heads": SpanConvolution((3,)), "use_output": False}, "use_output=False needs .* no extra heads"),
    ],
    ids=["bias", "encoding", "values", "projections", "twice", "extra_heads", "output"],
)
def test_what_does_not_fit(fields, message):
    with pytest.raises(ValueError, match=message):
        PositionalSelfAttention(**({"num_heads": H} | fields)).init(jax.random.key(0), jnp.zeros((1, 5, C)), (5,))


def test_points_have_no_kernels():
    positions = jnp.zeros((1, 5, 2))
    for fields in (
        {"terms": (Content(), RelativeBias((3,)))},
        {"terms": (Content(), KeyPositional(KernelEncoding((3,))))},
        {"values": PlusDepthwise(DepthwiseConvolution((3,)))},
        {"extra_heads": SpanConvolution((3,))},
    ):
        with pytest.raises(ValueError, match="positions"):
            layer = PositionalSelfAttention(H, **fields)
            layer.init(jax.random.key(0), jnp.zeros((1, 5, C)), (5,), positions=positions)


@pytest.mark.slow
def test_the_dtype_is_that_of_inputs_and_parameters():
    layer = PositionalSelfAttention(2, values=PlusDepthwise(DepthwiseConvolution((3,))))
    x = jnp.ones((1, 5, 8))
    params = layer.init(jax.random.key(0), x)
    for dtype in (jnp.bfloat16, jnp.float32):
        x, params = jax.tree.map(lambda each, dtype=dtype: each.astype(dtype), (x, params))
        assert layer.apply(params, x).dtype == dtype
