"""What NNX modules are besides Linen's: states, streams of dropout, errors; and the examples of their docstrings."""

import dataclasses
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import posattn_jax
from posattn_jax import Cache, Tokens
from posattn_jax import nnx as native
from posattn_jax.nnx import (
    AxialEncoding,
    Content,
    ContentBias,
    EncoderBlock,
    FlatSpan,
    GaussianSpan,
    KernelEncoding,
    LanguageModel,
    LearnedDecay,
    LearnedEncoding,
    LearnedWindow,
    LinearProjections,
    Positional,
    PositionalSelfAttention,
    RampSpan,
    RelativeBias,
    SinusoidalEncoding,
    Siren,
    SirenEncoding,
    Translution,
    WindowSpan,
)

INPUTS = jnp.linspace(-1, 1, 2 * 6 * 4).reshape(2, 2, 3, 4)
TOKENS = Tokens(INPUTS.reshape(2, 6, 4), (2, 3), num_heads=2)


ENCODINGS = {
    "sinusoids": lambda rngs: SinusoidalEncoding(num_heads=2, head_dim=2, rngs=rngs),
    "table": lambda rngs: LearnedEncoding((3, 5), num_heads=2, head_dim=2, rngs=rngs),  # the grid is smaller
    "axial": lambda rngs: AxialEncoding((3, 5), num_heads=2, head_dim=2, rngs=rngs),
    "kernel": lambda rngs: KernelEncoding((3, 3), num_heads=2, head_dim=2, rngs=rngs),
    "siren": lambda rngs: SirenEncoding(2, num_heads=2, head_dim=2, rngs=rngs),
}


@pytest.mark.parametrize("name", ENCODINGS)
def test_an_encoding_alone(name):
    assert ENCODINGS[name](nnx.Rngs(0))(TOKENS).shape == (3, 5, 2, 2)


def test_parameters_before_a_call():
    rngs = nnx.Rngs(0)
    assert LinearProjections(8, num_heads=2, head_dim=4, use_bias=False, rngs=rngs).kernel.shape == (8, 3, 2, 4)
    assert GaussianSpan(2, num_heads=4, per_head=True, initial_sigma=0.25).sigma.shape == (4, 2)
    assert RampSpan(2, num_heads=4).log_width.shape == (4, 2) and FlatSpan(2, per_head=False).log_width.shape == (2,)
    assert ContentBias(num_heads=2, head_dim=4, rngs=rngs).u.shape == (2, 4)
    assert RelativeBias((3, 3), num_heads=2, rngs=rngs).beta.shape == (3, 3, 2)
    assert LearnedDecay(num_heads=2).log_a.shape == (2,)
    assert KernelEncoding((3, 3), 2, 4, share_heads=False, rngs=rngs).table.shape == (3, 3, 2, 4)
    layer = make(terms=(Content(),), span=GaussianSpan(2))
    assert layer.output.kernel.shape == (2, 2, 4) and layer.span.sigma.shape == (2,) and layer.terms[0].needs


def test_a_window_of_ones_own():
    class TriangleSpan(LearnedWindow):
        def __init__(self, *sizes, floor, **fields):
            super().__init__(*sizes, **fields)
            self.floor = nnx.Param(jnp.array(floor))

        def log_profile(self, distance):
            return jnp.log(jnp.maximum(1 - distance, self.floor[...]))

    layer = make(span=TriangleSpan(2, 2, floor=1e-6, initial_width=0.9))
    gradient = nnx.jit(nnx.grad(lambda layer: jnp.sum(layer(INPUTS) ** 2)))(layer)
    assert layer.span.log_width.shape == (2, 2) and (gradient["span"]["log_width"][...] != 0).any()
    assert "floor" in gradient["span"]


class OwnTerm(nnx.Module):
    """A term of one's own in NNX, with a part of ours."""

    needs = ()

    def __init__(self, rngs):
        self.weight, self.bias = nnx.Param(jnp.array(2.0)), RelativeBias((3, 3), 2, rngs=rngs)

    def __call__(self, query, key, tokens):
        scores = self.bias(query, key, tokens)
        return dataclasses.replace(scores, relative_bias=self.weight[...] * scores.relative_bias)


def test_a_part_of_ones_own():
    layer = make(terms=(Content(), OwnTerm(nnx.Rngs(0))))
    layer.terms[1].bias.beta[...] = jnp.arange(18.0).reshape(3, 3, 2) / 18
    gradient = nnx.jit(nnx.grad(lambda layer: jnp.sum(layer(INPUTS) ** 2)))(layer)
    own = gradient["terms_1"]
    assert own["weight"][...] != 0 and (own["bias"]["beta"][...] != 0).any()


def test_terms_have_the_names_that_they_are_given():
    layer = make(terms={"what": Content(), "where": Positional(SirenEncoding())}, example=(INPUTS,))
    assert layer.terms["where"] is layer.terms_where and layer.terms.keys() == {"what", "where"}
    gradient = nnx.jit(nnx.grad(lambda layer: jnp.sum(layer(INPUTS) ** 2)))(layer)
    assert (gradient["terms_where"]["encoding"]["siren"]["kernel_1"][...] != 0).any()


def test_parts_without_sizes_get_their_parameters_from_the_layer():
    layer = make(terms=(Content(), Positional(SirenEncoding())), example=(INPUTS,), values=Translution((1, 1)))
    assert layer.terms_1.encoding.siren.kernel_1.shape == (2, 4)
    assert nnx.jit(lambda layer: layer(INPUTS))(layer).shape == INPUTS.shape
    taken = lambda rngs: EncoderBlock(make(), mlp_dim=8, example=(INPUTS,), rngs=rngs).attention.output.kernel[...]
    np.testing.assert_array_equal(taken(nnx.Rngs(1)), make().output.kernel[...])  # what a part has, it keeps


def test_decoding_with_a_cache():
    layer, inputs = make(), INPUTS.reshape(2, 6, 4)
    expected = layer(inputs, is_causal=True)
    cache = Cache.empty(2, 6, 2, 2)
    for i in range(6):
        one = layer(inputs[:, i : i + 1], (6,), is_causal=True, cache=cache, return_intermediates=True)
        np.testing.assert_allclose(one[0][:, 0], expected[:, i], atol=1e-5)
        cache = one[1]["cache"]


def test_a_model_steps():
    block = lambda: EncoderBlock(PositionalSelfAttention(num_heads=2), mlp_dim=8)
    words = jnp.array([[2, 5, 3]])
    model = LanguageModel(7, 4, blocks=(block(), block()), example=(words,), rngs=nnx.Rngs(0))
    again, _ = nnx.merge(*nnx.split(model)).step(words[:, 0], model.start(1, (3, 3)), 3)
    np.testing.assert_allclose(again, model(words)[:, 0], atol=1e-5)


def make(**fields):
    return PositionalSelfAttention(4, num_heads=2, rngs=nnx.Rngs(0), **fields)


def test_names_of_the_state():
    rngs = nnx.Rngs(0)
    terms = (Content(), Positional(SirenEncoding(2, 2, 2, num_layers=2, rngs=rngs)), ContentBias(2, 2, rngs=rngs))
    layer = make(terms=terms, span=GaussianSpan(2))
    names = {"/".join(path) for path in nnx.to_flat_state(nnx.state(layer)).paths}
    siren = {f"terms_1/encoding/siren/{name}_{i}" for name in ("kernel", "bias") for i in (1, 2)}
    whole = {"projections/kernel", "projections/bias", "output/kernel", "output/bias"}
    assert names == {"terms_2/u", "span/sigma"} | siren | whole


def test_dropout_has_a_stream():
    layer = make(dropout_rate=0.5)
    call = nnx.jit(lambda layer, x: layer(x))
    first, second = call(layer, INPUTS), call(layer, INPUTS)
    assert (first != second).any()  # the stream went on
    np.testing.assert_array_equal(call(make(dropout_rate=0.5), INPUTS), first)
    key = lambda: nnx.Rngs(dropout=3)
    given = [jax.jit(lambda x: layer(x, rngs=key()))(INPUTS) for _ in range(2)]
    np.testing.assert_array_equal(*given)
    without = call(make(), INPUTS)
    asked = nnx.jit(lambda layer, x: layer(x, deterministic=True))
    np.testing.assert_allclose(asked(layer, INPUTS), without, atol=1e-6)
    layer.eval()
    np.testing.assert_allclose(call(layer, INPUTS), without, atol=1e-6)
    layer.train()
    assert (call(layer, INPUTS) != without).any()


def test_a_field_that_is_set_is_that_of_the_next_call():
    layer, without = make(dropout_rate=0.5, terms=(Content(), LearnedDecay(2))), make()
    layer.set_attributes(dropout_rate=0.0)
    layer.terms, layer.scale, layer.span = [Content()], 0.1, GaussianSpan(2)
    like = make(terms=(Content(),), scale=0.1, span=GaussianSpan(2))
    assert nnx.to_flat_state(nnx.state(layer, nnx.Param)).paths == nnx.to_flat_state(nnx.state(like, nnx.Param)).paths
    nnx.update(layer, nnx.state(like, nnx.Param))
    call = nnx.jit(lambda layer: layer(INPUTS))
    np.testing.assert_array_equal(call(layer), call(like))
    layer.span, layer.scale = None, without.scale
    nnx.update(layer, nnx.state(without, nnx.Param))
    np.testing.assert_array_equal(call(layer), call(without))
    with pytest.raises(ValueError, match="span=GaussianSpan.* is a Linen module"):
        layer.span = posattn_jax.GaussianSpan()
    with pytest.raises(AttributeError, match="in_features=8: it is made with in_features=4"):
        layer.in_features = 8


def test_intermediates():
    layer = make(terms=(Content(), Positional(LearnedEncoding((2, 3), 2, 2, rngs=nnx.Rngs(0)))), span=GaussianSpan(2))
    outputs, found = nnx.jit(lambda layer: layer(INPUTS, return_weights=True))(layer)
    assert outputs.shape == INPUTS.shape and sorted(found) == ["relative_encoding", "sigma", "weights"]
    np.testing.assert_allclose(found["weights"].sum(-1), 1, rtol=1e-5)


def test_an_optimiser_moves_every_parameter():
    optax = pytest.importorskip("optax")
    layer = make(span=GaussianSpan(2, threshold=0.0))
    optimizer = nnx.Optimizer(layer, optax.sgd(0.1), wrt=nnx.Param)
    before = jax.tree.map(jnp.copy, nnx.to_pure_dict(nnx.state(layer, nnx.Param)))
    optimizer.update(layer, nnx.jit(nnx.grad(lambda layer: jnp.sum(layer(INPUTS) ** 2)))(layer))
    after = nnx.to_pure_dict(nnx.state(layer, nnx.Param))
    assert all(jax.tree.leaves(jax.tree.map(lambda one, other: bool((one != other).any()), before, after)))


ERRORS = {
    "num_heads=3 does not divide": lambda rngs: PositionalSelfAttention(4, num_heads=3, rngs=rngs),
    "num_kv_heads=3 does not divide": lambda rngs: PositionalSelfAttention(4, 4, num_kv_heads=3, rngs=rngs),
    "terms=Content": lambda rngs: make(terms=Content()),
    r"span=GaussianSpan is a class": lambda rngs: make(span=GaussianSpan),
    r"terms\[0\]=WindowSpan.* is a span": lambda rngs: make(terms=(WindowSpan((1,)),)),
    "use_output=False needs": lambda rngs: make(head_dim=3, use_output=False),
    "expected an rng": lambda rngs: PositionalSelfAttention(4, 2, dropout_rate=0.1, rngs=nnx.Rngs(params=0)),
    "expected a width of in_features=4": lambda rngs: make()(jnp.ones((1, 6, 8))),
    "made with num_dims=1: the layer has 2": lambda rngs: make(span=GaussianSpan(1))(INPUTS),
    "made with num_heads=4": lambda rngs: make(terms=(Content(), LearnedDecay(4)))(INPUTS),
    "initial_sigma=0: expected more than 0": lambda rngs: GaussianSpan(1, initial_sigma=0),
    "covariance=": lambda rngs: GaussianSpan(1, covariance="half"),
    "SirenEncoding has no parameters: expected its sizes": lambda rngs: SirenEncoding()(TOKENS),
    "expected num_heads with it": lambda rngs: GaussianSpan(1, per_head=True),
    "half_span=": lambda rngs: make(span=WindowSpan((1,)))(INPUTS),
    "initial_decay=0": lambda rngs: LearnedDecay(2, initial_decay=0),
    "num_layers=1": lambda rngs: Siren(1, 2, num_layers=1, rngs=rngs),
    "bias_init=": lambda rngs: Siren(1, 2, bias_init="ones", rngs=rngs),
    "odd sizes": lambda rngs: RelativeBias((2,), 2, rngs=rngs),
    "kernel_shape=": lambda rngs: KernelEncoding((3,), 2, 2, rngs=rngs)(TOKENS),
    "the size of the learned table": lambda rngs: LearnedEncoding((2, 2), 2, 2, rngs=rngs)(TOKENS),
}


@pytest.mark.parametrize("message", ERRORS)
def test_errors_in_one_line(message, unchecked):
    with pytest.raises(ValueError, match=message) as caught:
        ERRORS[message](nnx.Rngs(0))
    assert "\n" not in str(caught.value)


def test_the_package_has_it_without_an_import(monkeypatch):
    monkeypatch.delattr(posattn_jax, "nnx")  # as before its first import
    assert posattn_jax.nnx is native
    with pytest.raises(AttributeError, match="no attribute 'nn_x'"):
        _ = posattn_jax.nn_x


def test_every_public_module_is_exported():
    found = {name for name, value in vars(native).items() if inspect.isclass(value)}
    assert found - {"Bridged"} == set(native.__all__)
