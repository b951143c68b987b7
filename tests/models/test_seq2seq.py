"""The encoder-decoder: what it sees, that decoding a step at a time is decoding at once, and its parameters."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import nmt
from configs.lib import common_nmt
from posattn_jax.config.experiment import build_model
from posattn_jax.models.beam_search import beam_search
from posattn_jax.models.seq2seq import EncoderDecoder, precomputed
from posattn_jax.nn.blocks import SequenceBlock
from posattn_jax.nn.energies import DotProducts, FourierWeights
from posattn_jax.nn.mixing import TokenMixing
from posattn_jax.nn.places import of_sequence
from posattn_jax.nn.positions import StackPositions
from tests.support.float64 import float64
from tests.support.slow import slow

V, PAD, BEGIN, END = 11, 0, 1, 2
FURTHER = ("lightconv", "aposnet", "shaw_gated", "gaussian", "glinear", "mixed_c")


def config_of(mixer, num_encoder_blocks):
    """Of width 8, with two blocks that decode."""
    config = common_nmt.get_config(is_tiny=True)
    common_nmt.set_model(config, mixer, 8, 16, 2, 0.1, num_blocks=2, context=2, max_length=9)
    config.model.num_encoder_blocks = num_encoder_blocks
    return config


def model_of(config, vocabulary_size, source_vocabulary_size, length_ratio):
    sizes = {"vocabulary_size": vocabulary_size, "source_vocabulary_size": source_vocabulary_size}
    return build_model(config, (EncoderDecoder,), length_ratio=length_ratio, **sizes)


@functools.cache
def built(mixer, separate=False, num_encoder_blocks=1):
    """A model in float64, and random parameters."""
    with float64():
        model = model_of(config_of(mixer, num_encoder_blocks), V, V if separate else None, 1.3)
        ids = jnp.ones((1, 2), jnp.int32)
        shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), ids, ids)["params"])
        rng = np.random.default_rng(0)
        return model, jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape) / 2), shapes)


def source_and_target():
    source = jnp.array([[3, 4, 5, 6, 7, 8], [9, 3, 10, PAD, PAD, PAD]])
    return source, jax.random.randint(jax.random.key(1), (2, 7), 1, V)


@pytest.mark.parametrize("mixer", ["rposnet_edc", *map(slow, ("transformer", *FURTHER))])
def test_a_step_at_a_time_is_all_at_once(float64, mixer):
    """Three hypotheses a sentence: the logits after every token are those of the whole sequence."""
    model, params = built(mixer)
    source, target = source_and_target()[0], jax.random.randint(jax.random.key(2), (6, 7), 1, V)
    whole = jax.jit(model.apply)({"params": params}, jnp.repeat(source, 3, 0), target)
    start = jax.jit(lambda source: model.apply({"params": params}, source, 3, 7, method="start"))
    kept, cross = start(source)
    step = jax.jit(
        lambda tokens, at, kept: model.apply({"params": params}, tokens, at, kept, cross, source, method="step")
    )
    for at in range(7):
        logits, kept = step(target[:, at], jnp.int32(at), kept)
        np.testing.assert_allclose(logits, whole[:, at], rtol=1e-5, atol=1e-5)


DECODERS = ("transformer", "relative", "linear", "lightconv_global", *FURTHER, "aposnet_c", "rposnet_dc")


@pytest.mark.parametrize("tables", [False, slow(True)])
@pytest.mark.parametrize("mixer", ["rposnet_edc", *map(slow, DECODERS)])
def test_a_wide_beam_finds_every_sequence_there_is(float64, mixer, tables):
    """With the probabilities of whole sequences, in which every token is given to the model at once."""
    model, params = built(mixer)
    (source, _), lengths, beam = source_and_target(), (3, 2), 1 + 8 + 64
    fixed, own = precomputed(model, params, 9) if tables else (model, params)

    @jax.jit
    def search(source):
        empty, cross = fixed.apply({"params": own}, source, beam, 3, method="start")
        step = lambda *state: fixed.apply({"params": own}, *state, cross, source, method="step")
        ids = {"begin_id": BEGIN, "end_id": END, "pad_id": PAD}
        sizes = {"batch_size": 2, "beam_size": beam, "max_lengths": jnp.array(lengths), "max_steps": 3}
        return beam_search(step, empty, **ids, **sizes)

    tokens, scores = map(np.asarray, search(source))
    for b, length in enumerate(lengths):
        bodies = [y for size in range(length) for y in itertools.product(range(END + 1, V), repeat=size)]
        targets = np.array([[*y, END, *[PAD] * (2 - len(y))] for y in bodies])
        before = np.pad(targets[:, :-1], ((0, 0), (1, 0)), constant_values=BEGIN)
        sources = jnp.broadcast_to(source[b], (len(bodies), source.shape[1]))
        logits = np.asarray(jax.jit(model.apply)({"params": params}, sources, before))
        log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        log_probs = np.where(targets == PAD, 0, np.take_along_axis(log_probs, targets[..., None], -1)[..., 0])
        expected = {tuple(y): p.sum() / (y != PAD).sum() for y, p in zip(targets, log_probs, strict=True)}
        alive = np.isfinite(scores[b])
        found = {tuple(y): p for y, p in zip(tokens[b][alive], scores[b][alive], strict=True)}
        assert alive.sum() == len(found) and found.keys() == expected.keys()
        np.testing.assert_allclose([found[y] for y in expected], list(expected.values()), rtol=2e-5)
        assert (np.diff(scores[b][alive]) <= 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("mixer", ["transformer", "rposnet_edc", "gaussian", "glinear"])
def test_no_target_token_sees_the_future(float64, mixer):
    """The gradient of every logit for the embeddings of later target tokens is exactly 0."""
    model, params = built(mixer, separate=True)
    source, tokens = source_and_target()[0][:1], jnp.arange(1, 8)

    def logits(embeddings):
        table = params["embedding"]["embedding"].at[tokens].set(embeddings)
        return model.apply({"params": params | {"embedding": {"embedding": table}}}, source, tokens[None])[0]

    jacobian = jax.jit(jax.jacrev(logits))(params["embedding"]["embedding"][tokens])  # [t v s c]
    seen = np.abs(jacobian).sum((1, 3)) > 0
    assert not np.triu(seen, 1).any(), "the future"
    assert np.diag(seen).all() and np.diag(seen, -1).all(), "itself, and the token before"
    everywhere = np.tri(7, dtype=bool)
    if mixer not in ("gaussian", "lightconv"):  # which reach a few tokens back a block
        np.testing.assert_array_equal(seen, everywhere)


@pytest.mark.slow
@pytest.mark.parametrize("mixer", [slow("fourier"), slow("lightconv"), "rposnet_edc"])
def test_padding_changes_no_token(float64, mixer):
    """Neither how much there is of it, nor how a batch is put together."""
    model, params = built(mixer)
    source, target = source_and_target()
    run = jax.jit(lambda source, target: model.apply({"params": params}, source, target))
    alone = run(source[1:, :3], target[1:, :5])
    np.testing.assert_allclose(run(source, target)[1, :5], alone[0], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("mixer", ["rposnet_edc", "aposnet"])
def test_precomputed_energies_change_no_logit(float64, mixer):
    model, params = built(mixer)
    source, target = source_and_target()
    before = jax.tree.map(np.array, params)
    fixed, tables = precomputed(model, params, 9)
    expected = jax.jit(lambda: model.apply({"params": params}, source, target))()
    found = jax.jit(lambda: fixed.apply({"params": tables}, source, target))()
    np.testing.assert_allclose(found, expected, atol=1e-6)
    jax.tree.map(np.testing.assert_array_equal, params, before)

    @jax.jit
    def first(token):
        kept, cross = fixed.apply({"params": tables}, source, 1, 7, method="start")
        return fixed.apply({"params": tables}, token, jnp.int32(0), kept, cross, source, method="step")[0]

    np.testing.assert_allclose(first(target[:, 0]), expected[:, 0], atol=1e-6)


def test_positions_beyond_the_table_have_its_last(float64):
    """So a sentence longer than any of training is translated."""
    positions = StackPositions("learned", 3, param_dtype=jnp.float64)
    places = of_sequence(5)
    run = jax.jit(lambda key: positions.init_with_output(key, places, 4)[0])
    for (vectors,) in jax.tree.map(np.asarray, run(jax.random.key(0))):
        np.testing.assert_array_equal(vectors[3:], vectors[[2, 2]])
        assert not np.array_equal(vectors[1], vectors[2])


@pytest.mark.parametrize("kind", ["learned", "sinusoidal"])
def test_dropout_of_positions_is_drawn_once(float64, monkeypatch, kind):
    """All layers of a stack see the same features, of which every example has others dropped, and no words' vectors."""
    model, params = built("rposnet", num_encoder_blocks=2)
    positions = StackPositions(kind, 9, 0.5, param_dtype=jnp.float64)
    model = model.clone(encoder_positions=positions)
    own = {"params": params["encoder_positions"] if kind == "learned" else {}}
    places, rng = of_sequence(6), {"dropout": jax.random.key(0)}
    added, (whole,) = jax.jit(lambda: positions.apply(own, places, 8))()
    again, _ = jax.jit(lambda: positions.apply(own, places, 8, 2, deterministic=False, rngs=rng))()
    np.testing.assert_array_equal(added, again)
    seen, call = [], DotProducts.__call__

    def watched(self, inputs, memory, places, heads):
        seen.append(places.query_features)
        return call(self, inputs, memory, places, heads)

    monkeypatch.setattr(DotProducts, "__call__", watched)

    @jax.jit
    def seen_by_layers(source, rng):
        model.apply({"params": params}, source, deterministic=False, rngs={"dropout": rng}, method="encode")
        return seen

    seen = seen_by_layers(source_and_target()[0], jax.random.key(1))
    assert len(seen) == 2
    np.testing.assert_array_equal(seen[0], seen[1])
    kept = np.asarray(seen[0]) != 0
    np.testing.assert_allclose(seen[0], np.where(kept, 2 * whole, 0), rtol=1e-12)
    assert seen[0].shape == (2, 6, 8) and (kept[0] != kept[1]).any() and 0.2 < kept.mean() < 0.8


def test_tables_refuse_what_is_longer_under_jit():
    """Also where places are not known before running."""
    model, params = built("glinear")
    source, target = jnp.ones((1, 10), jnp.int32), jnp.ones((1, 4), jnp.int32)
    run = jax.jit(lambda source, target: model.apply({"params": params}, source, target))
    for one, other in ((source, target), (target, source)):
        with pytest.raises(ValueError, match=r"\(10,\): .*\(9,\)"):
            run(one, other)
    model, params = built("rposnet")

    def run_of_tables(params, source):
        fixed, tables = precomputed(model, params, 9)
        return fixed.apply({"params": tables}, source, target)

    with pytest.raises(ValueError, match=r"grid of \(10,\)"):
        jax.eval_shape(run_of_tables, params, source)


@pytest.mark.parametrize("shared", ["energies", slow("mixing"), slow("block")])
def test_one_module_in_two_blocks_has_no_tables(shared):
    """The places of its two uses may differ, so that one table cannot stand for both."""
    mixing = lambda: TokenMixing(2, energies=DotProducts("position", ("relative",), context=2))
    block = SequenceBlock(mixing(), 8)
    other = SequenceBlock(mixing(), 8, cross=TokenMixing(2))
    if shared == "block":
        blocks = (block, block)
    else:
        one = block.mixing if shared == "mixing" else TokenMixing(2, energies=block.mixing.energies)
        blocks = (block, SequenceBlock(one, 8))
    model = EncoderDecoder(V, 8, blocks, (other,), StackPositions("learned", 9), StackPositions())
    ids = jnp.ones((1, 2), jnp.int32)
    name = "encoder_blocks_1" if shared == "block" else shared
    with pytest.raises(ValueError, match=f"{name} has no parameters of its own: expected a module that no other"):
        jax.eval_shape(lambda: precomputed(model, model.init(jax.random.key(0), ids, ids)["params"], 9)[1])


def test_logits_in_bfloat16_are_not_rounded():
    """Features are; the products with the embeddings are float32."""
    model, params = built("rposnet")
    low = model.clone(dtype=jnp.bfloat16)
    logits = jax.jit(lambda: low.apply({"params": params}, *source_and_target()) - params["output_bias"])()
    assert logits.dtype == jnp.float32
    assert np.mean(np.asarray(logits) != np.asarray(logits.astype(jnp.bfloat16))) > 0.9


def test_a_decoder_needs_mixers_that_go_step_by_step(unchecked):
    model, _ = built("transformer")
    block = model.decoder_blocks[0]
    for change, message in (
        (
            {"mixing": TokenMixing(2, energies=FourierWeights())},
            "decoder_blocks: FourierWeights cannot decode step by step",
        ),
        (
            {"cross": TokenMixing(2, energies=FourierWeights())},
            "decoder_blocks: FourierWeights cannot decode step by step",
        ),
        ({"cross": None}, "decoder_blocks: expected cross-attention in every block"),
    ):
        with pytest.raises(ValueError, match=message):
            model.clone(decoder_blocks=(block.clone(**change),))
    with pytest.raises(ValueError, match='form="other"'):
        StackPositions("other").init(jax.random.key(0), of_sequence(2), 4)


# Schmidt 2023, Tables 2, 3, 5 and 6: size -> rows as printed, a/rPosNet after precomputation.
PRINTED = {
    ("wmt14_en_de", "base"): {
        "transformer": "66.5M",
        "shaw": "66.7M",
        "fourier": "63.4M",
        "gaussian": "60.2M",
        "linear": "61.8M",
        "lightconv": "63.4M",
        "glinear": "65.0M",
        "aposnet": "65.0M",
        "rposnet": "63.9M",
        "transformer_gated": "69.7M",
        "shaw_gated": "69.9M",
        "relative": "63.6M",
        "relative_gated": "66.7M",
        "aposnet_ungated": "61.8M",
        "rposnet_ungated": "60.8M",
    },
    ("wmt14_en_de", "big"): {
        "transformer": "221M",
        "shaw": "221M",
        "fourier": "208M",
        "gaussian": "196M",
        "linear": "199M",
        "lightconv": "209M",
        "glinear": "212M",
        "aposnet": "212M",
        "rposnet": "210M",
    },
    ("iwslt14", "small"): {
        "transformer": "36.8M",
        "shaw": "37.0M",
        "fourier": "33.6M",
        "gaussian": "30.4M",
        "linear": "32.0M",
        "lightconv": "33.6M",
        "glinear": "35.2M",
        "aposnet": "35.2M",
        "rposnet": "34.1M",
    },
    ("wmt18_en_zh", "base"): {
        "lightconv_plain": "101M",
        "lightconv": "104M",
        "lightconv_gelu": "104M",
        "lightconv_global": "104M",
        "rposnet": "104M",
    },
}
ROWS = [(*which, mixer, printed) for which, rows in PRINTED.items() for mixer, printed in rows.items()]
# The other sizes have the same mixers as the base.
ALL_SIZES = ("transformer", "rposnet")
ROWS = [row if row[1] == "base" or row[2] in ALL_SIZES else slow(*row) for row in ROWS]


@functools.cache
def num_parameters(name, variant):
    """Of a config's model at full size, with position-only energies in tables."""
    config = nmt.get_config(f"{name},{variant}")
    ids, depth = jnp.ones((1, 2), jnp.int32), config.model.num_encoder_blocks
    config.model.update(num_encoder_blocks=1, num_decoder_blocks=1)
    model = model_of(config, config.data.vocabulary_size, config.data.source_vocabulary_size or None, 1.0)
    shapes = jax.eval_shape(
        lambda key: precomputed(model, model.init(key, ids, ids)["params"], 128)[1], jax.random.key(0)
    )
    blocks = [shapes[f"{stack}_blocks_0"] for stack in ("encoder", "decoder")]  # all are alike
    return sum(x.size for x in jax.tree.leaves([shapes, *blocks * (depth - 1)]))


@pytest.mark.parametrize("name, size, mixer, printed", ROWS)
def test_parameters_as_the_paper_prints_them(unchecked, name, size, mixer, printed):
    digits = 1 if "." in printed else 0
    assert f"{num_parameters(name, f'{mixer},{size}') / 1e6:.{digits}f}M" == printed


@pytest.mark.parametrize(
    "mixer, expected",
    [("transformer", 44_140_544), ("shaw", 44_343_296), ("lightconv", 40_991_840), ("rposnet", 41_539_584)],
)
def test_parameters_exactly(unchecked, mixer, expected):
    """C + (c + 1) V of the base models, V = 43,640: counted from the paper's description."""
    assert num_parameters("wmt14_en_de", f"{mixer},base") == expected + 513 * 43_640
