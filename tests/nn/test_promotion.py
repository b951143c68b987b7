"""Every operation and part, forward and backward, where JAX promotes neither dtypes nor ranks by itself.

Programs are only traced: what would be promoted is known then. Flax's own LayerNorm promotes dtypes if it computes in
bfloat16, so a module with one is traced in float32 alone.
"""

import copy
import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

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
    FourierWeights,
    GaussianSpan,
    GeluGate,
    GeneralTranslution,
    Glu,
    KernelEncoding,
    KeyPositional,
    LearnedDecay,
    LearnedEncoding,
    LearnedPositions,
    LinearBias,
    LowRankTranslution,
    Memory,
    OffsetTable,
    PlusDepthwise,
    PlusRelative,
    Positional,
    PositionalBias,
    PositionalSelfAttention,
    RelativeBias,
    RelativeContent,
    RotaryContent,
    ScoreNetwork,
    SinusoidalEncoding,
    SirenEncoding,
    SpanConvolution,
    TokenMixing,
    Translution,
    WindowSpan,
    relative_attention,
)
from tests.nnx import test_equals_linen as of_nnx
from tests.ops.attention.attention_suite import NATIVE, make_inputs
from tests.project.test_docstrings import example_of
from tests.support.slow import slow

H, C = 2, 8
GRID, KEY_MASK, SEGMENTS = (3, 4), np.ones((2, 12), bool), np.zeros((2, 12), np.int32)
PAIRS = {"mask": np.ones((1, 1, 12, 12), bool), "bias": np.ones((1, H, 12, 12), np.float32)}


@pytest.fixture(autouse=True)
def strict(unchecked):
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        yield


def trace(function, arrays):
    """Traces a function of arrays and its gradient with respect to those that are float."""
    learned = {name: x for name, x in arrays.items() if x.dtype not in (bool, np.int32)}

    def loss(learned):
        results = jax.tree.leaves(function(arrays | learned))
        return sum(x.astype(jnp.float32).sum() for x in results if jnp.issubdtype(x.dtype, jnp.floating))

    jax.eval_shape(jax.grad(loss), learned)


def in_bfloat16(part):
    """The part, and all its parts, where they compute in bfloat16."""
    if isinstance(part, tuple):
        return tuple(map(in_bfloat16, part))
    if not isinstance(part, nn.Module):
        return part
    names = [field.name for field in dataclasses.fields(part) if field.name not in ("parent", "name")]
    fields = {name: in_bfloat16(getattr(part, name)) for name in names}
    return part.clone(**fields | ({"dtype": jnp.bfloat16} if "dtype" in fields else {}))


def trace_module(module, *inputs, **options):
    """The results and variables of a module, which is traced forward and backward in each dtype that it computes in."""
    norms, rngs = [], dict.fromkeys(("params", "dropout"), jax.random.key(0))

    def watch(call, arguments, fields, context):
        norms.extend([context.module] if isinstance(context.module, nn.LayerNorm) else [])
        return call(*arguments, **fields)

    with nn.intercept_methods(watch):
        results, variables = jax.eval_shape(lambda: INITIALISE(module, rngs, *copy.deepcopy(inputs), **options))
    flat, structure = jax.tree.flatten(variables)
    for own in (module, *([] if norms else [in_bfloat16(module)])):

        def apply(arrays, own=own):
            whole = jax.tree.unflatten(structure, list(arrays.values()))
            return own.apply(whole, *copy.deepcopy(inputs), **options, rngs=rngs)

        trace(apply, {str(i): x for i, x in enumerate(flat)})
    if any(isinstance(x, Memory) for x in inputs):  # which keeps what is computed
        return INITIALISE(module, rngs, *inputs, **options)
    return jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), (results, variables))


INITIALISE = nn.Module.init_with_output
# Examples that have most parts in them; `LAYERS` below has others.
FAST = ("Bert", "EncoderDecoder", "MixedEnergies", "Siren", "VisionTransformer", "halo_attention")
FAST_LAYERS = ("a span", "pairs", "convolved", "extra heads", "translution", "content", "lightconv")


@pytest.mark.parametrize("name", [name if name in FAST else slow(name) for name in posattn_jax.__all__])
def test_a_part(monkeypatch, name):
    """As its docstring's example calls it."""

    def init_with_output(module, _, *inputs, **options):
        return trace_module(module, *inputs, **options)

    monkeypatch.setattr(nn.Module, "init_with_output", init_with_output)
    monkeypatch.setattr(nn.Module, "init", lambda *given, **options: init_with_output(*given, **options)[1])
    namespace = {}
    for example in example_of(name).examples:
        exec(example.source, namespace)


def attending(*terms, **fields):
    return PositionalSelfAttention(num_heads=H, terms=terms or (Content(),), **fields)


def mixing(energies, **fields):
    return TokenMixing(num_heads=H, energies=energies, **fields)


SIREN = Positional(SirenEncoding(hidden_features=3))
CAUSAL, PADDED, CLASS = {"is_causal": True}, {"key_mask": KEY_MASK}, {"num_class_tokens": 1}
LAYERS = {
    "a span": (attending(Content(), SIREN, ContentBias(), PositionalBias(), span=GaussianSpan()), GRID, CAUSAL),
    "of each head": (attending(SIREN, span=GaussianSpan(mode="log_add", per_head=True)), GRID, PADDED),
    "full": (attending(SIREN, span=GaussianSpan(covariance="full"), implementation="tiled"), GRID, CAUSAL),
    "precision": (attending(RotaryContent(), span=GaussianSpan(covariance="precision"), num_kv_heads=1), GRID, {}),
    "window": (attending(span=WindowSpan((1, 1))), GRID, {"is_causal": (True, False), "segment_ids": SEGMENTS}),
    "pairs": (attending(Content(), RelativeBias((3, 3)), BucketedBias(), dropout_rate=0.5), GRID, PAIRS),
    "decays": (attending(KeyPositional(KernelEncoding((3, 3))), LinearBias(), LearnedDecay()), GRID, PADDED),
    "dilation": (attending(Content(), Positional(AxialEncoding()), dilation=(1, 2)), GRID, PADDED),
    "sinusoids": (attending(Positional(SinusoidalEncoding()), implementation="factorised"), GRID, PADDED),
    "network": (attending(ScoreNetwork(), SIREN, values=PlusRelative(KernelEncoding((3, 3)))), GRID, CLASS),
    "depthwise": (attending(values=PlusDepthwise(DepthwiseConvolution((3, 3))), gate=GeluGate()), GRID, PADDED),
    "convolved": (attending(projections=ConvolutionalProjections((3, 3))), GRID, CLASS),
    "extra heads": (attending(head_dim=2, extra_heads=SpanConvolution((3, 3), "key")), GRID, PADDED),
    "translution": (attending(RelativeContent(half_span=(1, 1)), values=Translution()), GRID, CLASS),
    "in a span": (attending(values=Translution(half_span=(1, 1)), span=GaussianSpan()), GRID, CAUSAL),
    "low rank": (attending(RelativeContent(rank=2), values=LowRankTranslution(rank=2)), GRID, CLASS),
    "points": (attending(values=GeneralTranslution()), (12,), {"positions": np.ones((2, 12, 3), np.float32)}),
    "content": (mixing(DotProducts("content", ("content", "relative"))), GRID, CAUSAL | PADDED),
    "rposnet": (mixing(DotProducts("position", ("relative",), positions=LearnedPositions((12,)))), (12,), PADDED),
    "lightconv": (mixing(OffsetTable(context=1), values=Glu()), (12,), {"segment_ids": SEGMENTS}),
    "fourier": (mixing(FourierWeights(), gate=GeluGate()), (12,), PADDED),
}


@pytest.mark.parametrize("name", [name if name in FAST_LAYERS else slow(name) for name in LAYERS])
def test_a_layer(name):
    layer, grid_shape, options = LAYERS[name]
    num_tokens = 12 + options.get("num_class_tokens", 0)
    options = {name: jnp.asarray(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}
    trace_module(layer, jnp.ones((2, num_tokens, C)), grid_shape, **options, deterministic=False)


def test_a_decoding_step():
    terms = Content(), Positional(LearnedEncoding()), ContentBias(), PositionalBias(), LinearBias()
    cache, inputs = Cache.empty(2, 5, H, C // H), jnp.ones((2, 1, C), jnp.float32)
    trace_module(attending(*terms, span=GaussianSpan()), inputs, (5,), cache=cache, is_causal=True)


# Those of Linen are the same modules.
@pytest.mark.parametrize("name", [name if name == "ramp" else slow(name) for name in of_nnx.CASES])
def test_a_layer_of_nnx(name):
    grid_shape, terms, span, fields, options = of_nnx.CASES[name]
    graph, state = nnx.split(of_nnx.both(terms, span, **fields)[1])
    num_tokens = int(np.prod(grid_shape)) + options.get("num_class_tokens", 0)
    options = {name: jnp.asarray(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}
    leaves, structure = jax.tree.flatten(state)

    def apply(arrays):
        layer = nnx.merge(graph, jax.tree.unflatten(structure, list(arrays.values())))
        return layer(jnp.ones((2, num_tokens, of_nnx.C)), grid_shape, **options)

    trace(apply, {str(i): x for i, x in enumerate(leaves)})


IMPLEMENTATIONS = ("auto", "reference", "dense", "tiled", "patch", "window", *NATIVE)
LOCAL = {
    "span": (True, {}),
    "causal": (True, {"is_causal": True, "span_mode": "log_add", "key_mask": KEY_MASK}),
    "segments": (False, {"segment_ids": SEGMENTS, "is_causal": (True, False), "threshold": 0.0}),
    "lengths": (False, dict.fromkeys(("key_value_seq_lengths", "query_seq_lengths"), np.array([2, 3], np.int32))),
}
FAST_IMPLEMENTATIONS = {"float32": ("auto",), "bfloat16": ("auto", "tiled", "patch", "window", "native")}
CASES = {**LOCAL, "pairs": (True, PAIRS), "weights": (True, {"return_weights": True})}


@pytest.mark.parametrize("covariance", ["diagonal", slow("full")])
@pytest.mark.parametrize(
    "implementation, dtype",
    [
        (name, dtype) if name in FAST_IMPLEMENTATIONS[dtype] else slow(name, dtype)
        for name in IMPLEMENTATIONS
        for dtype in ("float32", "bfloat16")
    ],
)
def test_attention(implementation, dtype, covariance):
    of_pairs = implementation in ("auto", "reference", "dense")
    for has_span, options in (CASES if of_pairs else LOCAL).values():
        arrays = make_inputs(GRID, has_span, covariance=covariance, dtype=np.float32)
        arrays["relative_bias"] = np.ones((5, 7, H), np.float32)
        arrays |= {name: x for name, x in options.items() if isinstance(x, np.ndarray)}
        kept = ("sigma", "content_bias", *(name for name, x in arrays.items() if x.dtype != np.float32))
        arrays = {name: jnp.asarray(x, None if name in kept else jnp.dtype(dtype)) for name, x in arrays.items()}
        static = {name: x for name, x in options.items() if name not in arrays}
        static |= {"span_bound": (2, 3)} if has_span else {}

        def attend(arrays, static=static):
            return relative_attention(**arrays, **static, grid_shape=GRID, implementation=implementation)

        trace(attend, arrays)


@pytest.mark.parametrize("dtype", [np.float32, slow(np.float64)])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_attention_where_integers_have_64_bits(float64, implementation, dtype):
    arrays = {name: jnp.asarray(x, dtype) for name, x in make_inputs(GRID, dtype=dtype).items()}
    trace(lambda x: relative_attention(**x, span_bound=(2, 3), grid_shape=GRID, implementation=implementation), arrays)


def test_a_decoding_step_where_integers_have_64_bits(float64):
    test_a_decoding_step()
