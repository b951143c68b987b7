"""What NNX modules are besides Linen's: states, streams of dropout, errors; and the examples of their docstrings."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import posattn_jax
from posattn_jax import Tokens
from posattn_jax import nnx as native
from posattn_jax.nnx import (
    Content,
    ContentBias,
    GaussianSpan,
    KernelEncoding,
    LearnedDecay,
    LearnedEncoding,
    Positional,
    PositionalSelfAttention,
    RelativeBias,
    Siren,
    SirenEncoding,
    WindowSpan,
)
from tests.project.test_docstrings import example_of, run
from tests.support.slow import slow

INPUTS = jnp.linspace(-1, 1, 2 * 6 * 4).reshape(2, 2, 3, 4)
TOKENS = Tokens(INPUTS.reshape(2, 6, 4), (2, 3), num_heads=2)


# launch/versions.sh runs the examples of all.
FAST = ("PositionalSelfAttention", "Siren", "RelativeBias", "GaussianSpan")


@pytest.mark.parametrize("name", [name if name in FAST else slow(name) for name in native.__all__])
def test_example(name):
    test = example_of(name, native)
    assert any(example.want for example in test.examples)
    run(test)


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
    assert found == set(native.__all__)
