"""Causal order: no later token changes an earlier output by one bit, in any part, layer, block or model.

`ORDERS` are the orders of a grid. `test_every_module_is_run` fails for a module of the package that no case runs, so
that a new part needs a case here, or a reason.
"""

import importlib
import inspect
import itertools
import math
import pkgutil

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posattn_jax
from posattn_jax import (
    AxialEncoding,
    BucketedBias,
    Cache,
    Content,
    ContentBias,
    ConvolutionalProjections,
    DepthwiseConvolution,
    DotProducts,
    EncoderBlock,
    EncoderDecoder,
    FlatSpan,
    FourierPositions,
    FourierWeights,
    GaussianSpan,
    GaussianWeights,
    GeluGate,
    GeneralTranslution,
    Glu,
    KernelEncoding,
    KeyPositional,
    LanguageModel,
    LearnedDecay,
    LearnedEncoding,
    LearnedPositions,
    LinearBias,
    LinearProjections,
    LowRankTranslution,
    MixedEnergies,
    NormalizedGelu,
    OffsetTable,
    PairTable,
    PlusDepthwise,
    PlusRelative,
    Positional,
    PositionalBias,
    PositionalSelfAttention,
    RampSpan,
    RelativeBias,
    RelativeContent,
    RotaryContent,
    ScoreNetwork,
    SequenceBlock,
    SinusoidalEncoding,
    SinusoidalPositions,
    SirenEncoding,
    SpanConvolution,
    StackPositions,
    TokenMixing,
    Translution,
    WindowSpan,
    models,
    of_grid,
    relative_attention,
)
from posattn_jax import nn as parts
from posattn_jax.ops.depthwise import by_xla, depthwise_convolution
from tests.ops.attention.attention_suite import NATIVE
from tests.support.made_params import made_params
from tests.support.slow import slow

H, C = 2, 8
LINE, PLANE = (6,), (3, 4)
ORDERS = {
    "line": (LINE, True),
    "row-major": (PLANE, True),
    "by column": (PLANE, (False, True)),
    "by row and column": (PLANE, (True, True)),
}


def seen(grid_shape, is_causal, cls=0):
    """[s t], whether token s may change output t. Class tokens come before the grid."""
    places = [*range(cls), *np.ndindex(*grid_shape)]

    def may(s, t):
        if isinstance(s, int) or isinstance(t, int):
            return isinstance(s, int)
        if is_causal is True:
            return s <= t
        return all(i <= j for i, j, causal in zip(s, t, is_causal, strict=True) if causal)

    return np.array([[may(s, t) for t in places] for s in places])


def check(apply, inputs, order, cls=0, step=1):
    """Changes every `step`-th token of `inputs` [1 t ...] by itself, and compares all outputs [1 t ...] bit by bit."""
    run = jax.jit(apply)
    before, may = np.asarray(run(inputs)), seen(*order, cls)
    assert np.isfinite(before).all()
    for s, changes in list(enumerate(may))[::step]:
        other = inputs[:, s] + 1 if inputs.ndim == 2 else -2 * inputs[:, s] + 1
        changed = (before != np.asarray(run(inputs.at[:, s].set(other)))).any((0, 2))
        assert not changed[~changes].any(), f"token {s} changes outputs {np.flatnonzero(changed & ~changes)}"
        assert changed[s], f"token {s} does not change its own output"


def features(grid_shape, cls=0):
    return jax.random.normal(jax.random.key(0), (1, cls + math.prod(grid_shape), C))


def attention(**fields):
    """A layer for grids of p dimensions, whose `fields` may be functions of the shape (3, ...) of a kernel."""
    return lambda p: PositionalSelfAttention(
        H, **{name: x((3,) * p) if inspect.isfunction(x) else x for name, x in fields.items()}
    )


def mixing(energies, **fields):
    return lambda p: TokenMixing(H, energies=energies(LINE if p == 1 else PLANE), **fields)


def rposnet(shape):
    return DotProducts("position", ("relative",), 1, LearnedPositions(shape))


SCORES = (Content(), Positional(SirenEncoding()), ContentBias(), PositionalBias(), LinearBias(), LearnedDecay())
TABLES = (SinusoidalEncoding(), LearnedEncoding(), AxialEncoding())
LAYERS = {
    "scores": attention(terms=SCORES, span=GaussianSpan(), gate=GeluGate()),
    "kernels": attention(
        terms=lambda k: (
            RelativeBias(k),
            BucketedBias(8),
            Positional(KernelEncoding(k)),
            KeyPositional(KernelEncoding(k, "drop")),
            ScoreNetwork(),
        ),
        values=lambda k: PlusRelative(KernelEncoding(k)),
    ),
    "tables": attention(terms=tuple(map(Positional, TABLES)), projections=LinearProjections()),
    "rotary": attention(terms=(RotaryContent(),), span=lambda k: WindowSpan((1,) * len(k)), normalize_qk=True),
    "ramp": attention(span=RampSpan(initial_width=0.5)),
    "flat top": attention(span=FlatSpan(initial_width=0.5)),
    "dilated": attention(dilation=lambda k: (2,) * len(k)),
    "relative content": attention(terms=lambda k: (RelativeContent(half_span=(1,) * len(k)),)),
    "translution": attention(values=lambda k: Translution(half_span=(1,) * len(k))),
    "low-rank translution": attention(values=LowRankTranslution(rank=2)),
    "general translution": attention(values=GeneralTranslution()),
    "depthwise": attention(values=lambda k: PlusDepthwise(DepthwiseConvolution(k))),
    "projections": attention(projections=lambda k: ConvolutionalProjections(k, ("query", "key", "value"))),
    "span convolution": attention(head_dim=2, extra_heads=lambda k: SpanConvolution(k)),
    "span convolution at keys": attention(head_dim=2, extra_heads=lambda k: SpanConvolution(k, "key")),
    "aposnet": mixing(
        lambda shape: DotProducts("position", ("position",), positions=FourierPositions()),
        values=NormalizedGelu(),
        gate=GeluGate(),
    ),
    "mixed": mixing(lambda shape: MixedEnergies((DotProducts(keys=("content", "relative")), rposnet(shape)))),
    "lightconv": mixing(lambda shape: OffsetTable(1), values=Glu()),
    "clipped": mixing(lambda shape: OffsetTable(1, "clip")),
    "linearnet": mixing(lambda shape: PairTable(shape, shape)),
    "gaussian": mixing(lambda shape: GaussianWeights()),
    "block": lambda p: EncoderBlock(TokenMixing(H), 8),
}
FAST = ("scores", "kernels", "depthwise", "projections", "span convolution", "mixed", "linearnet")
OTHER_ORDER = ("scores", "depthwise")  # of these in two dimensions too
LAYER_CASES = [
    (name, order)
    if (name in FAST and order == "line") or (name in OTHER_ORDER and order == "by column")
    else slow(name, order)
    for name, order in itertools.product(LAYERS, ORDERS)
]


@pytest.mark.parametrize("name, order", LAYER_CASES)
def test_a_layer(name, order):
    grid_shape, is_causal = ORDERS[order]
    layer, inputs = LAYERS[name](len(grid_shape)), features(grid_shape)
    variables = made_params(lambda: layer.init(jax.random.key(0), inputs, grid_shape), 0.5)
    check(lambda x: layer.apply(variables, x, grid_shape, is_causal=is_causal), inputs, ORDERS[order])


@pytest.mark.parametrize("order", ["by column", slow("row-major")])
def test_class_tokens_do_not_see_the_grid(order):
    """In a stack, a class token that saw the whole grid would show it to every position."""
    grid_shape, is_causal = ORDERS[order]
    layer = PositionalSelfAttention(H, values=PlusDepthwise(DepthwiseConvolution((3, 3))))
    fields, inputs = {"num_class_tokens": 1}, features(grid_shape, 1)
    variables = made_params(lambda: layer.init(jax.random.key(0), inputs, grid_shape, **fields), 0.5)
    apply = lambda x: layer.apply(variables, x, grid_shape, is_causal=is_causal, **fields)
    check(lambda x: apply(apply(x)), inputs, ORDERS[order], cls=1)


@pytest.mark.parametrize("order", ["line", slow("by column")])
def test_dropout_and_padding(order):
    grid_shape, is_causal = ORDERS[order]
    layer = EncoderBlock(PositionalSelfAttention(H, dropout_rate=0.5), 8, 0.5)
    inputs, mask = features(grid_shape), jnp.arange(math.prod(grid_shape))[None] != 1
    variables = made_params(lambda: layer.init(jax.random.key(0), inputs, grid_shape), 0.5)
    fields = {"key_mask": mask, "is_causal": is_causal, "deterministic": False, "rngs": {"dropout": jax.random.key(2)}}
    check(lambda x: layer.apply(variables, x, grid_shape, **fields), inputs, ORDERS[order])


def test_fourier_weights_are_refused():
    """They mix the whole sequence."""
    layer = TokenMixing(H, energies=FourierWeights())
    for grid_shape, is_causal in ORDERS.values():
        with pytest.raises(ValueError, match="^FourierWeights: .*is_causal"):
            run = lambda x: layer.init(jax.random.key(0), x, grid_shape, is_causal=is_causal)  # noqa: B023
            jax.eval_shape(run, features(grid_shape))


CONVOLVED = {
    "projections": ConvolutionalProjections((3,)),
    "values": PlusDepthwise(DepthwiseConvolution((3,))),
    "extra_heads": SpanConvolution((3,)),
}
BLOCK = SequenceBlock(TokenMixing(H), 8, cross=TokenMixing(H))


def language_model(**fields):
    blocks = tuple(EncoderBlock(PositionalSelfAttention(H, head_dim=2, **CONVOLVED), 8, norm="pre") for _ in range(2))
    return LanguageModel(9, C, blocks, positions=SinusoidalPositions(), **fields)


# Models, and their inputs before the one that is causal.
MODELS = {
    "language model": (language_model(),),
    "scanned": (language_model(scan_layers=True, remat=True),),
    "decoder": (
        EncoderDecoder(
            9,
            C,
            encoder_blocks=(SequenceBlock(TokenMixing(H), 8),),
            decoder_blocks=(BLOCK, BLOCK),
            encoder_positions=StackPositions(),
            decoder_positions=StackPositions("learned", 6),
        ),
        jnp.array([[3, 1, 4, 0]]),
    ),
}
WORDS = jnp.arange(6)[None]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["language model", "decoder", slow("scanned")])
def test_a_model(name):
    model, *given = MODELS[name]
    variables = made_params(lambda: model.init(jax.random.key(0), *given, WORDS), 0.5)
    check(lambda words: model.apply(variables, *given, words), WORDS, ORDERS["line"])


LARGER = [((260,), True), ((3, 70), True), ((3, 70), (False, True)), ((3, 70), (True, True))]
IMPLEMENTATIONS = "reference", "dense", "patch", "window", "tiled"


@pytest.mark.parametrize("order", LARGER, ids=str)
@pytest.mark.parametrize("implementation", ["auto", *NATIVE, *map(slow, IMPLEMENTATIONS)])
def test_attention(implementation, order):
    """On grids of several tiles of queries and of keys."""
    grid_shape, is_causal = order
    fields = {"grid_shape": grid_shape, "is_causal": is_causal, "implementation": implementation}
    fields["sigma"] = jnp.full(len(grid_shape), 0.5)

    def apply(x):
        x = x.reshape(1, -1, H, C // H)
        return relative_attention(x, 2 * x, 3 * x, **fields).reshape(1, -1, C)

    check(apply, features(grid_shape), order, step=13)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("form", [depthwise_convolution, slow(by_xla)])
def test_a_convolution(form, order):
    grid_shape, is_causal = ORDERS[order]
    kernel = jax.random.normal(jax.random.key(1), (*(3,) * len(grid_shape), C))

    def apply(x):
        return form(x.reshape(1, *grid_shape, C), kernel, is_causal).reshape(1, -1, C)

    check(apply, features(grid_shape), ORDERS[order])


@pytest.mark.parametrize("is_causal", [(True, False), (False, True), (True, True)], ids=str)
def test_steps_are_in_row_major_order_only(is_causal):
    """A cache has every earlier position in row-major order, which is not the order of single dimensions."""
    layer = PositionalSelfAttention(H, span=WindowSpan((1, 1)))
    variables = jax.eval_shape(lambda x: layer.init(jax.random.key(0), x, PLANE), features(PLANE))
    step = lambda v, x: layer.apply(v, x, PLANE, is_causal=is_causal, cache=Cache.empty(1, 6, H, C // H))
    with pytest.raises(ValueError, match=r"^cache: .*is_causal=\("):
        jax.eval_shape(step, variables, jnp.ones((1, 1, C)))


@pytest.mark.parametrize("is_causal", [(True,), (True, False, True)], ids=str)
def test_a_bool_for_every_dimension(unchecked, is_causal):
    layer = TokenMixing(H)
    with pytest.raises(ValueError, match=r"^is_causal=\(True,.* 2, one per"):
        jax.eval_shape(lambda x: layer.init(jax.random.key(0), x, PLANE, is_causal=is_causal), features(PLANE))


# Modules that have no causal order: none of them takes `is_causal`.
UNORDERED = {
    "Bert": "an encoder",
    "Classifier": "an encoder",
    "MaskedLanguageModel": "an encoder",
    "SequenceClassifier": "an encoder",
    "TokenClassifier": "an encoder",
    "VisionTransformer": "an encoder",
    "PositionalCrossAttention": "the keys are another sequence",
    "FourierWeights": "it mixes the whole sequence, see test_fourier_weights_are_refused",
}
# Functions that take `is_causal`, and the test of each.
ORDERED = {"relative_attention": "test_attention"}


def modules_of(package):
    """The Linen modules that are defined in a package."""
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        module = importlib.import_module(found.name)
        yield from (
            each
            for _, each in inspect.getmembers(module, inspect.isclass)
            if issubclass(each, nn.Module) and each.__module__ == module.__name__
        )


def test_every_module_is_run():
    covered = set()

    def intercept(call, args, kwargs, context):
        covered.update(type(context.module).__mro__)
        return call(*args, **kwargs)

    given = [(layer(1), features(LINE), LINE) for layer in LAYERS.values()]
    with nn.intercept_methods(intercept):
        for module, *inputs in (*given, *((*each, WORDS) for each in MODELS.values())):
            jax.eval_shape(lambda module=module, inputs=inputs: module.init(jax.random.key(0), *inputs))
    known = {*modules_of(parts), *modules_of(models)}
    assert {each.__name__ for each in known - covered} == set(UNORDERED)
    for name in UNORDERED:
        assert "is_causal" not in inspect.signature(getattr(posattn_jax, name).__call__).parameters, name


def test_every_function_is_run():
    functions = {name: getattr(posattn_jax, name) for name in posattn_jax.__all__}
    functions = {name: each for name, each in functions.items() if inspect.isfunction(each)}
    found = {name for name, each in functions.items() if "is_causal" in inspect.signature(each).parameters}
    assert found == set(ORDERED) and all(name in globals() for name in ORDERED.values())


def test_places_have_the_order_of_the_grid():
    for grid_shape, is_causal in ORDERS.values():
        (mask,) = of_grid(grid_shape, is_causal=is_causal).masks()
        np.testing.assert_array_equal(mask[0, 0], seen(grid_shape, is_causal).T)
