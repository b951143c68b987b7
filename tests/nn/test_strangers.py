"""What someone new writes, and is told in one line what to write instead."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from posattn_jax import (
    BucketedBias,
    Content,
    ContentBias,
    GaussianSpan,
    GeluGate,
    KeyPositional,
    LearnedDecay,
    LinearProjections,
    Positional,
    PositionalBias,
    PositionalSelfAttention,
    RampSpan,
    RelativeBias,
    RotaryContent,
    SirenEncoding,
    TokenMixing,
    Tokens,
    Translution,
    WindowSpan,
    relative_attention,
)
from posattn_jax import nnx as native

INPUTS = jnp.ones((2, 12, 8))


def init(*arguments, inputs=INPUTS, **fields):
    arguments = arguments or ((3, 4),)
    return PositionalSelfAttention(num_heads=2, **fields).init(jax.random.key(0), inputs, *arguments)


def init_native(**fields):
    return native.PositionalSelfAttention(8, 2, rngs=nnx.Rngs(0), **fields)


def without_rng():
    layer = PositionalSelfAttention(num_heads=2, dropout_rate=0.1)
    variables = jax.eval_shape(lambda: layer.init(jax.random.key(0), INPUTS, (3, 4)))
    return jax.eval_shape(lambda v: layer.apply(v, INPUTS, (3, 4), deterministic=False), variables)


def five_axes():
    query = jnp.ones((2, 3, 4, 2, 4))
    return relative_attention(query, query, query, grid_shape=(3, 4))


@pytest.mark.parametrize(
    "call, expected",
    [
        (lambda: init(terms=Content()), r"terms=Content\(...\): .*tuple"),
        (lambda: init(terms=(Content,)), r"terms\[0\]=Content is a class"),
        (lambda: init(span=GaussianSpan), "span=GaussianSpan is a class"),
        (lambda: init(values=Translution), "values=Translution is a class"),
        (lambda: init(gate=GeluGate), "gate=GeluGate is a class"),
        (lambda: init(terms=(Positional(SirenEncoding),)), "encoding=SirenEncoding is a class"),
        (lambda: init(terms=()), r"terms=\(\): expected at least one score term, such as \(Content\(\),\)"),
        (
            lambda: init(terms=(Content(), SirenEncoding())),
            r"terms\[1\]=SirenEncoding.* Positional\(SirenEncoding",
        ),
        (lambda: init(terms=(GaussianSpan(),)), r"terms\[0\]=GaussianSpan.*span=GaussianSpan"),
        (lambda: init(terms={"far": SirenEncoding()}), r"terms\['far'\]=SirenEncoding.*Positional\(SirenEncoding"),
        (lambda: init(terms={}), r"terms=\(\): expected at least one score term"),
        (lambda: init(span=Content()), r"span=Content.*: .*terms="),
        (lambda: Positional(Content()), "encoding=Content.*: .*terms="),
        (lambda: init_native(terms=(native_encoding(),)), r"terms\[0\]=SirenEncoding.*: .*Positional\(SirenEncoding"),
        (lambda: init_native(terms=()), r"terms=\(\): expected at least one score term"),
        (lambda: init(terms=(lambda query, key, tokens: query,)), r"terms\[0\]=.* does not say what it `needs`"),
        (
            lambda: init(terms=(Content(), PositionalBias())),
            r"PositionalBias .*Positional\(SirenEncoding",
        ),
        (lambda: init(terms=(ContentBias(),)), r"ContentBias .*Content\(\), ContentBias"),
        (lambda: init(span=WindowSpan(3)), r"half_span=3: .*\(3, 3\)"),
        (lambda: init(terms=(RelativeBias(3),)), r"kernel_shape=3: .*\(3, 3\)"),
        (lambda: GaussianSpan(initial_sigma=-0.3), "initial_sigma=-0.3"),
        (lambda: GaussianSpan(initial_sigma=(0.1, 0.2)), r"initial_sigma=\(0.1, 0.2\): .*one number"),
        (lambda: RampSpan(initial_width=[0.1, 0.2]), r"initial_width=\[0.1, 0.2\]: .*one number"),
        (lambda: PositionalSelfAttention(num_heads=2.0), "num_heads=2.0: expected a whole number"),
        (lambda: relative_attention(*[jnp.ones((1, 4, 1, 2), complex)] * 3, grid_shape=(4,)), "complex64: .*real"),
        (lambda: init(dilation=2), "dilation=2"),
        (lambda: init(span=7), "span=7"),
        (lambda: init(12), r"grid_shape is 12: .*\(16, 12\)"),
        (lambda: init((3.5, 4)), r"grid_shape=\(3.5, 4\): .*whole numbers"),
        (lambda: init("34"), r"grid_shape=\('3', '4'\): .*whole numbers"),
        (lambda: init(INPUTS), "grid_shape is an array .*PositionalCrossAttention"),
        (lambda: jax.jit(lambda n: init((n, 4)))(3), "grid_shape is traced: expected plain numbers"),
        (lambda: jax.jit(init)(jnp.array([3, 4])), "grid_shape is traced: expected plain numbers"),
        (lambda: init((3, 5)), r"query .*\(2, 15, 2, 4\) .*\(3, 5\)"),
        (
            without_rng,
            r"dropout_rate=0.1 .*rngs=",
        ),
        (five_axes, r"query .*\(2, 3, 4, 2, 4\): .*\[b t h d\]"),
    ],
)
def test_one_line_says_what_to_write(unchecked, call, expected):
    with pytest.raises(ValueError, match=expected) as raised:
        call()
    assert len(str(raised.value).splitlines()) == 1


class OwnTerm(nn.Module):
    needs = ()


def native_encoding():
    return native.SirenEncoding(2, 2, 4, rngs=nnx.Rngs(0))


@pytest.mark.parametrize(
    "call, field, expected",
    [
        (lambda: init(span=native.GaussianSpan(2)), "span", "from posattn_jax import GaussianSpan"),
        (lambda: init(terms=(Content(), native.Content())), "terms[1]", "from posattn_jax import Content"),
        (lambda: KeyPositional(native_encoding()), "encoding", "from posattn_jax import SirenEncoding"),
        (lambda: init(gate=nnx.Linear(4, 4, rngs=nnx.Rngs(0))), "gate", "nnx.bridge.ToLinen(Linear, ...)"),
        (lambda: init_native(span=GaussianSpan()), "span", "from posattn_jax.nnx import GaussianSpan"),
        (lambda: init_native(terms=(Content(),)), "terms[0]", "from posattn_jax.nnx import Content"),
        (lambda: init_native(projections=LinearProjections()), "projections", "import LinearProjections"),
        (lambda: native.Positional(SirenEncoding()), "encoding", "from posattn_jax.nnx import SirenEncoding"),
        (lambda: init_native(terms=(BucketedBias(),)), "terms[0]", "from posattn_jax.nnx import BucketedBias"),
        (lambda: init_native(terms=(OwnTerm(),)), "terms[0]", "nnx.bridge.ToNNX(layer, rngs=rngs)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_linen_and_nnx_do_not_mix(unchecked, call, field, expected):
    with pytest.raises(ValueError) as raised:
        call()
    assert str(raised.value).startswith(f"{field}=") and str(raised.value).endswith(expected)


@pytest.mark.parametrize(
    "call",
    [
        lambda: GaussianSpan(0.3),  # no threshold, but a sigma, to who does not know the order
        lambda: RampSpan(0.3),
        lambda: SirenEncoding(2, 2, 4),  # the sizes that the NNX class of the same name takes
        lambda: LearnedDecay(8),
        lambda: LinearProjections(8),
        lambda: RotaryContent(64),
        lambda: PositionalSelfAttention(64, 8),  # a width and heads, as other libraries order them
        lambda: TokenMixing(64, 8),
        lambda: native.RotaryContent(64),
    ],
)
def test_fields_without_a_natural_order_are_given_by_name(call):
    with pytest.raises(TypeError, match="positional argument"):
        call()


def test_a_window_of_one_dimension_is_a_number(unchecked):
    tokens = Tokens(INPUTS, (12,), num_heads=2)
    for span in (WindowSpan, native.WindowSpan):
        np.testing.assert_array_equal(span(3)(tokens).sigma, span((3,))(tokens).sigma)


@pytest.mark.parametrize("grid_shape", [jnp.array([3, 4]), [3, 4], (3.0, 4)])
def test_any_sequence_of_sizes_is_a_grid(unchecked, grid_shape):
    assert init(grid_shape)["params"].keys() == {"projections", "output"}
