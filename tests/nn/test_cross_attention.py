"""Attention from one grid to another: the whole layer against the oracle, and what it refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax import (
    BucketedBias,
    Content,
    ContentBias,
    ConvolutionalProjections,
    GaussianSpan,
    KernelEncoding,
    KeyPositional,
    LearnedDecay,
    LearnedEncoding,
    LinearBias,
    Positional,
    PositionalBias,
    PositionalCrossAttention,
    PositionalSelfAttention,
    RelativeBias,
    RotaryContent,
    SinusoidalEncoding,
    SirenEncoding,
    Translution,
)
from posattn_jax.ops import grid
from posattn_jax.ops.encodings import sinusoidal_features
from tests import oracle
from tests.support.made_params import made_params
from tests.support.slow import slow

H, D = 2, 1
SIREN = Positional(SirenEncoding(hidden_features=3))


def project(x, kernel, bias):
    """[n b t h d] of kernels [c n h d], by loops."""
    parts, heads, features = kernel.shape[1:4]
    out = np.zeros((parts, *x.shape[:2], heads, features, x.shape[-1]), complex)
    for i, b, t, h, d in np.ndindex(*out.shape[:-1]):
        out[i, b, t, h, d] = bias[i, h, d] + sum(x[b, t, c] * kernel[c, i, h, d] for c in range(x.shape[2]))
    return out


def expected_outputs(x, query_grid_shape, grid_shape, **options):
    siren = {name.removeprefix("siren_"): array for name, array in x.items() if name.startswith("siren_")}
    key, value = project(x["memory"], x["key_value_kernel"], x["key_value_bias"])
    parts = {"query": project(x["inputs"], x["query_kernel"], x["query_bias"])[0], "key": key, "value": value}
    parts |= {name: x[name] for name in ("content_bias", "position_bias", "sigma")}
    parts["relative_encoding"] = oracle.siren_encoding(siren, grid_shape, H, D, query_grid_shape)
    attended = oracle.attention(parts, grid_shape, query_grid_shape=query_grid_shape, **options)
    b, t, h, d, perturbations = attended.shape
    joined = attended.reshape(b, t, h * d, perturbations)
    kernel = x["output_kernel"].reshape(h * d, 1, 1, -1, perturbations)
    return project(joined, kernel, x["output_bias"][None, None])[0][:, :, 0]


def by_oracles_names(params, inputs, memory):
    names = {"content_bias": params["terms_2"]["u"], "position_bias": params["terms_3"]["v"], **params["span"]}
    names |= {f"output_{name}": array for name, array in params["output"].items()}
    names |= {f"siren_{name}": array for name, array in params["terms_1"]["encoding"]["siren"].items()}
    return names | params["projections"] | {"inputs": inputs, "memory": memory}


@pytest.mark.parametrize(
    "query_grid_shape, grid_shape, span",
    [
        ((2, 1), (3, 2), GaussianSpan(initial_sigma=0.4)),
        slow((1, 3), (2, 2), GaussianSpan(threshold=0.3, mode="log_add", per_head=True)),
        slow((5,), (2,), GaussianSpan(threshold=0.0)),
    ],
    ids=str,
)
def test_values_and_gradients_of_every_parameter(float64, query_grid_shape, grid_shape, span):
    terms = (Content(), SIREN, ContentBias(), PositionalBias())
    layer = PositionalCrossAttention(num_heads=H, head_dim=D, terms=terms, span=span)
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(2, grid.num_positions(query_grid_shape), 3))
    memory = rng.normal(size=(2, grid.num_positions(grid_shape), 4))
    keep = rng.random(memory.shape[:2]) < 0.8
    arrays = jnp.asarray(inputs), jnp.asarray(memory), query_grid_shape, grid_shape
    params = made_params(lambda: layer.init(jax.random.key(0), *arrays)["params"])
    params = jax.tree.map(lambda array: np.asarray(array, float) + 0.01 * rng.normal(size=array.shape), params)
    weights = rng.normal(size=inputs.shape)
    options = {"threshold": span.threshold, "span_mode": span.mode, "key_mask": keep}

    expected, expected_gradients = oracle.value_and_gradients(
        lambda x: weights[..., None] * expected_outputs(x, query_grid_shape, grid_shape, **options),
        {name: np.asarray(array) for name, array in by_oracles_names(params, inputs, memory).items()},
    )

    def loss(params, inputs, memory):
        given = inputs, memory, query_grid_shape, grid_shape
        outputs = weights * layer.apply({"params": params}, *given, key_mask=jnp.asarray(keep))
        return outputs.sum(), outputs

    gradients, outputs = jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(params, *arrays[:2])
    np.testing.assert_allclose(outputs, expected, rtol=1e-10, atol=1e-10)
    for name, gradient in by_oracles_names(*gradients).items():
        np.testing.assert_allclose(gradient, expected_gradients[name], rtol=1e-9, atol=1e-10, err_msg=name)


def test_what_a_decoder_sees_does_not_depend_on_its_resolution():
    """Among equal keys a query of 4 x 4 attends as its four parts of 8 x 8 do on average, and stands between them."""
    layer = PositionalCrossAttention(
        num_heads=1, terms=(LinearBias(),), span=GaussianSpan(threshold=0.0, mode="log_add")
    )
    coarse, fine, memory = jnp.ones((1, 4, 4, 2)), jnp.ones((1, 8, 8, 2)), jnp.ones((1, 8, 8, 2))
    variables = jax.jit(layer.init)(jax.random.key(0), coarse, memory)
    weigh = jax.jit(lambda x: layer.apply(variables, x, memory, return_weights=True)[1]["weights"][0, 0])
    far, near = weigh(coarse), weigh(fine)
    centre = np.asarray(far.reshape(4, 4, 8, 8)[1, 1])
    assert (centre.argmax() // 8, centre.argmax() % 8) in {(2, 2), (2, 3), (3, 2), (3, 3)}
    np.testing.assert_allclose(centre[2:4, 2:4], centre.max(), rtol=1e-5)  # four neighbours as near as each other
    means = np.asarray(near).reshape(4, 2, 4, 2, 64).mean((1, 3)).reshape(4, 4, 8, 8)[1, 1]
    assert np.abs(means - centre).max() < 0.3 * centre.max()


@pytest.mark.slow
def test_sinusoids_and_decays_are_of_real_offsets():
    x = np.asarray(grid.pair_offsets((4,), (2,)), np.float32)[..., 0]
    terms = (Positional(SinusoidalEncoding()), LearnedDecay(initial_decay=0.5))
    layer = PositionalCrossAttention(num_heads=1, terms=terms)
    decoded, encoded = jax.random.normal(jax.random.key(1), (1, 2, 2)), jnp.ones((1, 4, 3))
    params = made_params(lambda: layer.init(jax.random.key(0), decoded, encoded)["params"])
    weigh = jax.jit(lambda params: layer.apply({"params": params}, decoded, encoded, return_weights=True)[1]["weights"])
    weights = weigh(params)[0, 0]
    linear, projections = params["terms_0"]["encoding"]["linear"], params["projections"]
    query = decoded[0] @ projections["query_kernel"][:, 0, 0] + projections["query_bias"][0, 0]
    encoding = sinusoidal_features(jnp.asarray(x + 3), 2) @ linear["kernel"] + linear["bias"]
    logits = jnp.einsum("td,tsd->ts", query, encoding) / np.sqrt(2)
    logits -= jnp.exp(params["terms_1"]["log_a"][0]) * np.abs(x)
    np.testing.assert_allclose(weights, jax.nn.softmax(logits), rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("num_kv_heads", [1, slow(2)])
def test_of_the_same_tokens_it_is_self_attention(num_kv_heads):
    """With tables, kernels and rotary encodings too, which equal grids have whole offsets for."""
    terms = (RotaryContent(), RelativeBias((3, 3)), LinearBias())
    fields = {"num_heads": 2, "num_kv_heads": num_kv_heads, "terms": terms, "span": GaussianSpan()}
    cross, own = PositionalCrossAttention(**fields), PositionalSelfAttention(**fields)
    x = jax.random.normal(jax.random.key(1), (2, 3, 4, 8))
    params = made_params(lambda: cross.init(jax.random.key(0), x, x)["params"])
    fused = params["projections"]
    if num_kv_heads == 2:
        of = {"kernel": 1, "bias": 0}  # the axis of the parts
        parts = {name: (fused[f"query_{name}"], fused[f"key_value_{name}"]) for name in of}
        fused = {name: jnp.concatenate(parts[name], axis) for name, axis in of.items()}
    found = jax.jit(cross.apply)({"params": params}, x, x)
    expected = jax.jit(own.apply)({"params": params | {"projections": fused}}, x)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"terms": (RotaryContent(),)}, "RotaryContent: .*one grid"),
        ({"terms": (RelativeBias((3,)),)}, "RelativeBias: .*one grid"),
        ({"terms": (BucketedBias(),)}, "BucketedBias: .*one grid"),
        ({"terms": (Positional(LearnedEncoding()),)}, "LearnedEncoding: .*one grid"),
        ({"terms": (Positional(KernelEncoding((3,))),)}, "KernelEncoding: .*one grid"),
        ({"terms": (KeyPositional(KernelEncoding((3,))),)}, "memory: expected None with KeyPositional"),
        ({"values": Translution()}, "memory: expected None with Translution"),
        ({"projections": ConvolutionalProjections((3,))}, "memory: .*DepthwiseConvolution"),
        ({"dilation": (2,)}, "does not support dilation"),
        ({"implementation": "native"}, 'does not support implementation="native"'),
        ({"grid_axis": "grid", "span": GaussianSpan()}, 'grid_axis="grid" .*query_grid_shape'),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_of_one_grid_is_refused(unchecked, fields, message):
    layer = PositionalCrossAttention(num_heads=2, **fields)
    with pytest.raises(ValueError, match=message) as raised:
        layer.init(jax.random.key(0), jnp.ones((1, 2, 8)), jnp.ones((1, 4, 8)))
    assert "\n" not in str(raised.value)


def test_grids_of_different_dimensions(unchecked):
    layer = PositionalCrossAttention(num_heads=2)
    with pytest.raises(ValueError, match=r"query_grid_shape=\(6,\): .*\(4, 4\)"):
        layer.init(jax.random.key(0), jnp.ones((1, 6, 8)), jnp.ones((1, 4, 4, 8)))
