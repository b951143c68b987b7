"""Rows that several sequences share: values and gradients are those of each sequence in a row of its own."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax.models.bert import Bert, MaskedLanguageModel, SequenceClassifier, bert_block
from posattn_jax.nn.biases import LinearBias
from posattn_jax.nn.blocks import EncoderBlock
from posattn_jax.nn.encodings import KernelEncoding
from posattn_jax.nn.energies import DotProducts, FourierWeights, GaussianWeights, OffsetTable, PairTable
from posattn_jax.nn.mixing import TokenMixing
from posattn_jax.nn.places import of_grid, places_within
from posattn_jax.nn.positions import FourierPositions, LearnedPositions, SinusoidalPositions
from posattn_jax.nn.score_network import ScoreNetwork
from posattn_jax.nn.siren import SirenEncoding
from posattn_jax.nn.span import GaussianSpan
from posattn_jax.nn.span_convolution import SpanConvolution
from posattn_jax.nn.terms import Content, KeyPositional, Positional, RelativeBias, RotaryContent
from posattn_jax.nn.translution import Translution
from posattn_jax.nn.values import DepthwiseConvolution, PlusDepthwise, PlusRelative
from tests.models.test_seq2seq import V, built
from tests.support.made_params import made_params
from tests.support.slow import slow

ROWS = (1, 4, 2), (3, 3)  # the lengths of the sequences in each row
T = 8


def rows_of(rows, length=T):
    """Segment ids, and where each sequence is: (row, its places)."""
    ids, where = np.zeros((len(rows), length), np.int32), []
    for row, lengths in enumerate(rows):
        ends = np.cumsum(lengths)
        for number, (end, own) in enumerate(zip(ends, lengths, strict=True), 1):
            ids[row, end - own : end] = number
            where.append((row, slice(end - own, end)))
    return ids, where


def alone_in_rows(packed, where):
    """Each sequence in a row of its own, padded."""
    alone = np.zeros((len(where), packed.shape[1]), packed.dtype)
    for row, (of, places) in zip(alone, where, strict=True):
        row[: places.stop - places.start] = packed[of, places]
    return alone


def test_places_begin_at_each_segment():
    ids, _ = rows_of(ROWS)
    expected = [[0, 0, 1, 2, 3, 0, 1, 0], [0, 1, 2, 0, 1, 2, 0, 1]]
    np.testing.assert_array_equal(places_within(jnp.asarray(ids)), expected)
    np.testing.assert_array_equal(places_within(jnp.asarray([[7], [0]])), [[0], [0]])


def same(apply, params, packed, alone, where):
    """Outputs at the tokens `where` sequences are, and gradients of a sum of them, of packed rows and of single ones.

    Outputs are `apply(params, **inputs)`, the inputs `packed` or `alone`.
    """
    weights = np.zeros((len(ROWS), T), np.float32)
    for number, (row, places) in enumerate(where, 1):
        weights[row, places] = number * np.arange(1, places.stop - places.start + 1)

    @jax.jit
    def run(params, inputs, weights):
        def total(params):
            outputs = apply(params, **inputs)
            return (jnp.sin(outputs).mean(-1) * weights).sum(), outputs

        gradient, outputs = jax.grad(total, has_aux=True)(params)
        return outputs, gradient

    outputs, gradient = run(params, packed, weights)
    expected, expected_gradient = run(params, alone, alone_in_rows(weights, where))
    for own, (row, places) in zip(expected, where, strict=True):
        np.testing.assert_allclose(outputs[row, places], own[: places.stop - places.start], rtol=1e-5, atol=1e-5)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5), gradient, expected_gradient)


def mixed(energies):
    return lambda: EncoderBlock(TokenMixing(2, energies=energies), 12, activation=nn.gelu)


def attending(**fields):
    return lambda: bert_block(2, 12, **fields)


CONVOLVED = RelativeBias((3,)), Positional(KernelEncoding((3,))), KeyPositional(KernelEncoding((3,)))
BLOCKS = {
    "convolutions": attending(terms=(Content(), *CONVOLVED), values=PlusRelative(KernelEncoding((3,)))),
    "rotary": attending(terms=(RotaryContent(), LinearBias())),
    "siren": attending(terms=(Content(), Positional(SirenEncoding())), span=GaussianSpan(initial_sigma=0.3)),
    "aposnet": mixed(DotProducts("position", ("position",))),
    "network": attending(terms=(ScoreNetwork(),)),
    "translution": attending(values=Translution(half_span=(2,))),
    "shaw": mixed(DotProducts(keys=("content", "relative"), context=2)),
    "rposnet": mixed(DotProducts("position", ("relative",), 2, LearnedPositions((T,)))),
    "lightconv": mixed(OffsetTable(1)),
    "linear": mixed(PairTable((T,), (T,))),
    "gaussian": mixed(GaussianWeights()),
    "fourier": mixed(FourierWeights()),
}
MOST = ("siren", "aposnet")
POSITIONS = {
    "absolute": {"absolute_positions": True, "max_length": T},
    "sinusoids": {"positions": SinusoidalPositions()},
    "learned": {"positions": LearnedPositions((T,))},
    "fourier": {"positions": FourierPositions()},
}


def bert(blocks, **fields):
    return Bert(20, 8, tuple(blocks), embedding_dim=6, **({"absolute_positions": False} | fields))


CASES = [("absolute", MOST), *(slow(name, MOST[:1]) for name in POSITIONS), *(slow("sinusoids", (x,)) for x in BLOCKS)]


@pytest.mark.parametrize("positions, blocks", CASES)
def test_a_row_of_bert_is_its_sentences_one_by_one(positions, blocks):
    model = MaskedLanguageModel(bert((BLOCKS[name]() for name in blocks), **POSITIONS[positions]))
    ids, where = rows_of(ROWS)
    rng = np.random.default_rng(0)
    packed = {
        "tokens": np.where(ids > 0, rng.integers(1, 20, ids.shape), 0),
        "segments": rng.integers(2, size=ids.shape),
    }
    alone = {name: alone_in_rows(array, where) for name, array in packed.items()}
    params = made_params(lambda: model.init(jax.random.key(0), jnp.asarray(ids))["params"])

    def apply(params, tokens, **inputs):
        return model.apply({"params": params}, tokens, key_mask=tokens != 0, **inputs)

    same(apply, params, packed | {"segment_ids": ids}, alone, where)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mixer",
    [
        "rposnet_edc",
        *map(slow, ("transformer", "aposnet", "shaw_gated", "gaussian", "glinear", "lightconv", "fourier")),
    ],
)
def test_a_row_of_translations_is_each_alone(float64, mixer):
    """Sides of different lengths, queries across at floor(gamma t) of their own sentence."""
    model, params = built(mixer)
    params = jax.tree.map(lambda x: x.astype(jnp.float32), params)
    (target_ids, where), (source_ids, in_source) = rows_of(ROWS), rows_of(((2, 3, 3), (4, 1)))
    rng = np.random.default_rng(0)
    source = np.where(source_ids > 0, rng.integers(1, V, source_ids.shape), 0)
    target = rng.integers(1, V, target_ids.shape)
    packed = {"source": source, "target": target}
    packed |= {"source_segment_ids": source_ids, "target_segment_ids": target_ids}
    alone = {"source": alone_in_rows(source, in_source), "target": alone_in_rows(target, where)}
    same(lambda params, **inputs: model.apply({"params": params}, **inputs), params, packed, alone, where)


@pytest.mark.parametrize(
    "fields",
    [
        {"values": PlusDepthwise(DepthwiseConvolution((3,)))},
        {"extra_heads": SpanConvolution((3,)), "head_dim": 2},
    ],
    ids=["depthwise", "convbert"],
)
def test_what_mixes_neighbours_is_refused(fields):
    model, tokens = bert([bert_block(2, 12, **fields)]), jnp.ones((1, 4), jnp.int32)
    with pytest.raises(ValueError, match="^DepthwiseConvolution .*segment_ids"):
        jax.eval_shape(lambda key: model.init(key, tokens, segment_ids=tokens), jax.random.key(0))


def test_what_is_not_a_row_of_sequences_is_refused():
    tokens = jnp.ones((1, 4), jnp.int32)
    classifier = SequenceClassifier(bert([bert_block(2, 12)]), num_outputs=2)
    with pytest.raises(ValueError, match="^segment_ids .*SequenceClassifier"):
        jax.eval_shape(lambda key: classifier.init(key, tokens, segment_ids=tokens), jax.random.key(0))
    with pytest.raises(ValueError, match=r"^segment_ids: .*\(2, 2\)"):
        of_grid((2, 2), tokens)
    model, params = built("transformer")
    with pytest.raises(ValueError, match="^query_segments, key_segments"):
        jax.eval_shape(lambda: model.apply({"params": params}, tokens, tokens, source_segment_ids=tokens))
