"""BERT: padding, segments, the tied head; its parameters are counted in tests/configs/test_configs.py."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax.models.bert import NORMAL, Bert, MaskedLanguageModel, SequenceClassifier, bert_block
from posattn_jax.nn.encodings import KernelEncoding
from posattn_jax.nn.positions import SinusoidalPositions
from posattn_jax.nn.projections import ConvolutionalProjections
from posattn_jax.nn.terms import Content, KeyPositional, Positional, RelativeBias
from posattn_jax.nn.values import DepthwiseConvolution, PlusDepthwise
from tests.support.made_params import made_params
from tests.support.slow import slow

TINY = {"embedding_dim": 6, "width": 8, "num_heads": 2, "mlp_dim": 12, "num_blocks": 2}


def make_bert(size, kinds=(), kernel=17, vocabulary_size=30_004, dtype=None, **fields):
    """A BERT with the parts that are named."""
    size = dict(size)
    convolved = tuple(part for part in ("query", "key", "value") if part in kinds)

    def block():
        terms = {
            "fixed": RelativeBias((kernel,)),
            "dynamic": Positional(KernelEncoding((kernel,))),
            "keyed": KeyPositional(KernelEncoding((kernel,))),
        }
        parts = {"terms": (Content(), *(term for name, term in terms.items() if name in kinds))}
        if "depthwise" in kinds:
            parts["values"] = PlusDepthwise(DepthwiseConvolution((kernel,)))
        if convolved:
            parts["projections"] = ConvolutionalProjections((kernel,), convolved, kernel_init=NORMAL)
        return bert_block(size["num_heads"], size["mlp_dim"], dtype=dtype, **parts)

    return Bert(
        vocabulary_size,
        size["width"],
        tuple(block() for _ in range(size["num_blocks"])),
        embedding_dim=size["embedding_dim"],
        absolute_positions="absolute" in kinds,
        dtype=dtype,
        **fields,
    )


COMPOSITE = ("fixed", "dynamic")
EVERYTHING = (*COMPOSITE, "keyed", "depthwise", "query", "key", "absolute")


@functools.cache
def make_tiny(kinds=EVERYTHING, head=MaskedLanguageModel, **fields):
    """A model of 20 tokens, its parameters so that all of it matters, and sequences with segments."""
    model = head(make_bert(TINY | {"num_blocks": 1}, kinds, kernel=3, vocabulary_size=20, max_length=9), **fields)
    tokens = jax.random.randint(jax.random.key(1), (2, 7), 0, 20)
    segments = (jnp.arange(7) >= 3).astype(int) * jnp.ones_like(tokens)
    params = made_params(lambda: model.init(jax.random.key(0), tokens)["params"])
    return model, params, tokens, segments


@pytest.mark.parametrize("kinds", [slow(COMPOSITE), EVERYTHING], ids=["composite", "everything"])
def test_padding_changes_no_token(kinds):
    """Of any length, with anything in it; and a mask that keeps all is no mask."""
    model, params, tokens, segments = make_tiny(kinds)
    mask = jnp.arange(7) < jnp.array([[4], [7]])

    @jax.jit
    def logits(tokens, mask):
        return model.apply({"params": params}, tokens, segments=segments, key_mask=mask)

    padded = logits(tokens, mask)
    np.testing.assert_array_equal(padded[0, :4], logits(jnp.where(mask, tokens, 13), mask)[0, :4])
    shorter = jax.jit(lambda: model.apply({"params": params}, tokens[:1, :4], segments=segments[:1, :4]))()
    np.testing.assert_allclose(padded[0, :4], shorter[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(padded[1], logits(tokens, jnp.ones_like(mask))[1], rtol=1e-4, atol=1e-5)


def test_segments_matter_and_default_to_the_first():
    model, params, tokens, segments = make_tiny(("absolute",))
    run = jax.jit(lambda **fields: model.apply({"params": params}, tokens, **fields))
    np.testing.assert_array_equal(run(), run(segments=jnp.zeros_like(tokens)))
    assert np.abs(run() - run(segments=segments)).max() > 1e-3


def test_targets_choose_among_all_logits():
    model, params, tokens, _ = make_tiny()
    where = jnp.array([[0, 5, 2], [6, 6, 1]])
    everywhere, chosen = jax.jit(
        lambda: [model.apply({"params": params}, tokens, targets=targets) for targets in (None, where)]
    )()
    expected = np.take_along_axis(np.asarray(everywhere), np.asarray(where)[..., None], 1)
    np.testing.assert_allclose(chosen, expected, rtol=1e-5, atol=1e-5)


def test_the_head_is_tied_to_the_embeddings():
    """Of a token that no input has, the embedding has a gradient only through the head."""
    model, params, tokens, _ = make_tiny(("absolute",))
    tokens = jnp.where(tokens == 19, 0, tokens)
    total = jax.jit(jax.grad(lambda params: model.apply({"params": params}, tokens)[..., 19].sum()))
    gradient = total(params)
    embedding = gradient["encoder"]["token_embedding"]["embedding"]
    assert np.abs(embedding[19]).max() > 1e-3
    np.testing.assert_allclose(gradient["bias"], 14 * (np.arange(20) == 19))


def test_without_positions_tokens_are_a_bag():
    model, params, tokens, _ = make_tiny(())
    order = jnp.array([3, 1, 6, 0, 5, 2, 4])
    run = jax.jit(lambda tokens: model.apply({"params": params}, tokens))
    np.testing.assert_allclose(run(tokens[:, order]), run(tokens)[:, order], rtol=1e-4, atol=1e-5)


def test_embeddings_are_scaled_and_positions_are_not():
    tokens = jax.random.randint(jax.random.key(1), (2, 7), 0, 20)
    make = functools.partial(make_bert, TINY, vocabulary_size=20, positions=SinusoidalPositions())
    params = made_params(lambda: make().init(jax.random.key(0), tokens)["params"])
    scaled = {name: {"embedding": 3 * params[name]["embedding"]} for name in ("token_embedding", "segment_embedding")}
    features = jax.jit(make(embedding_scale=3.0).apply)({"params": params}, tokens)
    apply = jax.jit(make().apply)
    expected, unscaled = apply({"params": params | scaled}, tokens), apply({"params": params}, tokens)
    np.testing.assert_allclose(features, expected, atol=1e-5)
    assert np.abs(features - unscaled).max() > 0.01


def test_without_positions_their_scale_changes_nothing():
    tokens = jax.random.randint(jax.random.key(1), (2, 7), 0, 20)
    make = functools.partial(make_bert, TINY, ("dynamic",), kernel=3, vocabulary_size=20)
    params = made_params(lambda: make().init(jax.random.key(0), tokens)["params"])
    outputs = [jax.jit(make(embedding_scale=scale).apply)({"params": params}, tokens) for scale in (1.0, 50.0)]
    np.testing.assert_allclose(*outputs, atol=1e-5)


@pytest.mark.slow
def test_a_label_a_sequence():
    model, params, tokens, segments = make_tiny(head=SequenceClassifier, num_outputs=3)
    logits = jax.jit(lambda: model.apply({"params": params}, tokens, segments=segments))()
    assert logits.shape == (2, 3)
    features = jax.jit(lambda: model.encoder.apply({"params": params["encoder"]}, tokens, segments=segments))()
    pooled = np.tanh(np.asarray(features)[:, 0] @ params["pooler"]["kernel"] + params["pooler"]["bias"])
    expected = pooled @ params["head"]["kernel"] + params["head"]["bias"]
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)


def test_dropout_is_everywhere_and_follows_its_rng():
    model, params, tokens, _ = make_tiny(("absolute",))
    run = jax.jit(lambda rng: model.apply({"params": params}, tokens, deterministic=False, rngs={"dropout": rng}))
    first = run(jax.random.key(0))
    np.testing.assert_array_equal(first, run(jax.random.key(0)))
    assert np.abs(first - run(jax.random.key(1))).max() > 1e-3


def test_scanned_blocks_in_bfloat16():
    encoder = make_bert(TINY, COMPOSITE, kernel=3, vocabulary_size=20, scan_layers=True, dtype=jnp.bfloat16)
    model = MaskedLanguageModel(encoder)
    params = made_params(lambda: model.init(jax.random.key(0), jnp.zeros((1, 5), int)))
    run = jax.jit(functools.partial(model.apply, return_intermediates=True))
    logits, intermediates = run(params, jnp.zeros((1, 5), int))
    assert logits.dtype == jnp.float32 and np.isfinite(logits).all() and set(intermediates) == {"block_0", "block_1"}


def test_initialisation():
    params = jax.jit(make_bert({**TINY, "width": 64, "mlp_dim": 96}, ("absolute",)).init)(
        jax.random.key(0), jnp.zeros((1, 5), int)
    )["params"]
    for path, array in jax.tree_util.tree_leaves_with_path(params):
        name = path[-1].key
        if name in ("kernel", "embedding"):
            assert np.std(array) == pytest.approx(0.02, rel=0.15), path
        else:
            np.testing.assert_array_equal(array, 1.0 if name == "scale" else 0.0)


def test_too_long_a_sequence():
    tokens = jnp.zeros((1, 10), int)
    with pytest.raises(ValueError, match="10 tokens: .*max_length=9"):
        jax.eval_shape(make_bert(TINY, ("absolute",), max_length=9).init, jax.random.key(0), tokens)
    assert isinstance(make_bert(TINY, ("fixed",), max_length=9), nn.Module)
    jax.eval_shape(make_bert(TINY, ("fixed",), max_length=9).init, jax.random.key(0), tokens)
