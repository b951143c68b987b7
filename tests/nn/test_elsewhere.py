"""What attention layers have elsewhere: masks, biases, packed rows, fewer heads of keys, dilation."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax import (
    Cache,
    ConvolutionalProjections,
    GaussianSpan,
    PlusDepthwise,
    Positional,
    PositionalSelfAttention,
    RelativeBias,
    SirenEncoding,
    WindowSpan,
    cache_length,
)
from posattn_jax.nn.values import DepthwiseConvolution
from tests.support.made_params import made_params
from tests.support.slow import slow

B, T, H, D, C = 2, 6, 4, 3, 12


def made(layer, grid_shape=(T,), batch_size=B):
    inputs = jax.random.normal(jax.random.key(1), (batch_size, int(np.prod(grid_shape)), C))
    variables = made_params(lambda: layer.init(jax.random.key(0), inputs, grid_shape))
    rng = np.random.default_rng(0)
    moved = lambda x: np.asarray(x) + 0.1 * rng.normal(size=x.shape)
    return inputs, jax.tree.map(lambda x: jnp.asarray(moved(x), x.dtype), variables)


def applied(layer, variables, inputs, **options):
    return jax.jit(lambda variables: layer.apply(variables, inputs, (T,), **options))(variables)


def same(found, expected, atol=2e-5):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=atol), found, expected)


def results(apply, params, inputs):
    """Outputs, and gradients of a sum of them."""

    def loss(params, inputs):
        outputs = apply(params, inputs)
        return (jnp.sin(outputs) * jnp.arange(1, C + 1)).sum(), outputs

    return jax.jit(jax.grad(loss, (0, 1), has_aux=True))(params, inputs)


def flaxs(params, num_heads=H):
    """Our parameters, or their gradients, by the names that flax's layer has."""
    fused = {name: jnp.moveaxis(array, -3, 0) for name, array in params["projections"].items()}
    parts = {part: {name: x[i] for name, x in fused.items()} for i, part in enumerate(("query", "key", "value"))}
    norms = {f"{name}_ln": params[f"{name}_norm"] for name in ("query", "key") if f"{name}_norm" in params}
    return parts | norms | {"out": params["output"]}


@pytest.mark.parametrize("normalize_qk", [False, True])
@pytest.mark.parametrize("case", ["mask", slow("causal"), slow("nothing")])
def test_without_positions_it_is_flaxs(case, normalize_qk):
    """Values and gradients of `flax.linen.MultiHeadDotProductAttention` with the same parameters."""
    layer = PositionalSelfAttention(num_heads=H, normalize_qk=normalize_qk)
    inputs, variables = made(layer)
    mask = jax.random.bernoulli(jax.random.key(2), 0.6, (B, 1, T, T)).at[..., 0].set(True)
    ours, theirs = {
        "mask": ({"mask": mask}, {"mask": mask}),
        "causal": ({"is_causal": True}, {"mask": nn.make_causal_mask(inputs[..., 0])}),
        "nothing": ({}, {}),
    }[case]
    reference = nn.MultiHeadDotProductAttention(num_heads=H, normalize_qk=normalize_qk, deterministic=True)
    gradients, outputs = results(
        lambda params, x: layer.apply({"params": params}, x, (T,), **ours), variables["params"], inputs
    )
    expected = results(
        lambda params, x: reference.apply({"params": params}, x, **theirs), flaxs(variables["params"]), inputs
    )
    same(((flaxs(gradients[0]), gradients[1]), outputs), expected, atol=2e-4)


@pytest.mark.parametrize("use_bias", [False, slow(True)])
def test_linear_maps_have_flaxs_fields(use_bias):
    """Values and gradients, where products are made by a function of one's own; each is told the precision."""
    told = []

    def half_more(*arguments, precision=None, **fields):
        told.append(precision)
        return 1.5 * jax.lax.dot_general(*arguments, precision=precision, **fields)

    fields = {"num_heads": H, "use_bias": use_bias, "precision": "highest"}
    layer = PositionalSelfAttention(**fields, dot_general=half_more)
    inputs, variables = made(layer)
    assert len(told) == 2 and set(told) == {"highest"}
    assert ("bias" in variables["params"]["output"]) == ("bias" in variables["params"]["projections"]) == use_bias
    reference = nn.MultiHeadDotProductAttention(**fields, qkv_dot_general=half_more, out_dot_general=half_more)
    gradients, outputs = results(
        lambda params, x: layer.apply({"params": params}, x, (T,)), variables["params"], inputs
    )
    expected = results(lambda params, x: reference.apply({"params": params}, x), flaxs(variables["params"]), inputs)
    same(((flaxs(gradients[0]), gradients[1]), outputs), expected, atol=1e-3)


@pytest.mark.parametrize("num_kv_heads", [2, slow(1)])
def test_fewer_heads_of_keys_are_repeated_ones(num_kv_heads):
    """Outputs of the layer with each kernel of keys and values h / k times; and what is not projected is not there."""
    fields = {
        "num_heads": H,
        "terms": (Positional(SirenEncoding()), RelativeBias((2 * T - 1,))),
        "span": GaussianSpan(),
    }
    few = PositionalSelfAttention(**fields, num_kv_heads=num_kv_heads)
    inputs, variables = made(few)
    projections = variables["params"]["projections"]
    assert {name: array.shape[1:] for name, array in projections.items() if "kernel" in name} == {
        "query_kernel": (1, H, D),
        "key_value_kernel": (1, num_kv_heads, D),  # no term asks for keys
    }
    fused = {
        name: jnp.concatenate(
            [projections[f"query_{name}"], jnp.repeat(projections[f"key_value_{name}"], H // num_kv_heads, -2)], -3
        )
        for name in ("kernel", "bias")
    }
    whole = {"params": variables["params"] | {"projections": fused}}
    same(applied(few, variables, inputs), applied(PositionalSelfAttention(**fields), whole, inputs))


def test_a_cache_of_fewer_heads_goes_on_step_by_step():
    layer = PositionalSelfAttention(num_heads=H, num_kv_heads=2, normalize_qk=True, span=WindowSpan((2,)))
    inputs, variables = made(layer)
    expected = applied(layer, variables, inputs, is_causal=True)
    cache = Cache.empty(B, cache_length((T,), (2,)), num_heads=2, head_dim=D)

    @jax.jit
    def step(cache, place):
        options = {"is_causal": True, "cache": cache, "return_intermediates": True}
        outputs, found = layer.apply(variables, place[:, None], (T,), **options)
        return found["cache"], outputs[:, 0]

    cache, outputs = jax.lax.scan(step, cache, jnp.moveaxis(inputs, 1, 0))
    assert cache.key.shape == (B, 3, 2, D)
    same(jnp.moveaxis(outputs, 0, 1), expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    "terms", [(Positional(SirenEncoding()),), slow((RelativeBias((2 * T - 1,)),))], ids=["siren", "bias"]
)
def test_segments_are_sentences_one_by_one(terms):
    """Values and gradients of a packed row are the sums over its sentences alone; distances are the row's."""
    lengths = (1, 3, 2)
    layer = PositionalSelfAttention(num_heads=H, terms=terms, span=GaussianSpan(initial_sigma=0.3))
    inputs, variables = made(layer, batch_size=1)
    ids = np.repeat(np.arange(3), lengths)[None]

    def packed(params, inputs):
        return layer.apply({"params": params}, inputs, (T,), segment_ids=jnp.asarray(ids))

    def alone(params, inputs):
        """Where the rest of the row is masked out."""
        rows = [
            layer.apply({"params": params}, inputs, (T,), key_mask=jnp.asarray(ids == i))[
                :, np.flatnonzero(ids[0] == i)
            ]
            for i in range(3)
        ]
        return jnp.concatenate(rows, 1)

    same(*(results(f, variables["params"], inputs) for f in (packed, alone)))


def test_dilation_sees_only_whole_steps():
    """What a query's outputs depend on: keys at multiples of the dilation, within the span."""
    layer = PositionalSelfAttention(
        num_heads=H, terms=(Positional(SirenEncoding()),), span=WindowSpan((2, 3)), dilation=(1, 3)
    )
    shape = (4, 8)
    inputs, variables = made(layer, shape, batch_size=1)
    outputs = jax.jit(jax.jacobian(lambda x: layer.apply(variables, x, shape)[0, :, 0]))(inputs)
    reached = np.abs(outputs[:, 0]).max(-1).reshape(*shape, *shape) > 0
    for row, column in ((0, 0), (1, 4), (3, 7)):
        rows, columns = (np.arange(size) for size in shape)
        expected = (np.abs(rows - row) <= 2)[:, None] & np.isin(columns - column, (-3, 0, 3))
        np.testing.assert_array_equal(reached[row, column], expected)


def test_a_bias_is_added_to_the_scores():
    """A bias of 0 changes nothing, and the log of a weight multiplies by it, whatever the scale."""
    layer = PositionalSelfAttention(num_heads=H, scale=0.7, span=GaussianSpan(mode="log_add"))
    inputs, variables = made(layer)
    factors = jax.random.uniform(jax.random.key(3), (1, H, T, T), minval=0.1)
    ask = {"return_weights": True}
    plain, weighted = (
        applied(layer, variables, inputs, bias=bias, **ask)[1]["weights"] for bias in (None, jnp.log(factors))
    )
    expected = plain * factors
    same(weighted, expected / expected.sum(-1, keepdims=True))


@pytest.mark.parametrize(
    "fields, options, message",
    [
        ({"num_kv_heads": 3}, {}, "num_kv_heads=3 .*num_heads=4"),
        ({"num_kv_heads": 0}, {}, "num_kv_heads=0"),
        (
            {"num_kv_heads": 2, "projections": ConvolutionalProjections((3,))},
            {},
            "num_kv_heads=2: ConvolutionalProjections",
        ),
        ({"dilation": (2, 2)}, {}, "dilation"),
        ({}, {"mask": np.ones((B, T, T), bool)}, r"mask has shape \(2, 6, 6\)"),
        ({}, {"bias": np.ones((B, 2, T, T))}, r"bias has shape \(2, 2, 6, 6\)"),
        ({}, {"mask": np.ones((B, 1, T, T))}, "mask"),
        ({}, {"segment_ids": np.ones((B, T + 1), int)}, r"segment_ids has shape \(2, 7\): expected \(2, 6\)"),
        ({}, {"is_causal": (True, False)}, "is_causal"),
        ({"implementation": "tiled"}, {"bias": np.ones((1, 1, T, T))}, '"tiled" does not support mask, bias'),
        ({"values": PlusDepthwise(DepthwiseConvolution((3,)))}, {"segment_ids": np.ones((B, T), int)}, "segment_ids"),
    ],
)
def test_what_does_not_fit_is_refused(unchecked, fields, options, message):
    with pytest.raises(ValueError, match=message) as raised:
        layer = PositionalSelfAttention(num_heads=H, span=GaussianSpan(), **fields)
        layer.init(jax.random.key(0), jnp.ones((B, T, C)), (T,), **options)
    assert "\n" not in str(raised.value)
