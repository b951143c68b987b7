"""Tags of words: the loss, accuracies and the F1 of spans, against loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from posattn_jax.models.bert import Bert, TokenClassifier, bert_block
from posattn_jax.nn.terms import Content, RelativeBias
from posattn_jax.tasks.tagging import Tagging
from tests.support.made_params import made_params

SIZE, LENGTH = 30, 14
CHUNKS = ("B-NP", "B-VP", "I-NP", "I-VP", "O")


def task_of(names, **fields):
    block = bert_block(2, 8, terms=(Content(), RelativeBias((5,))), dropout_rate=0.0)
    encoder = Bert(SIZE, 8, (block,), max_length=LENGTH, absolute_positions=False, dropout_rate=0.0)
    return Tagging(model=TokenClassifier(encoder, len(names)), names=names, input_shape=(LENGTH,), **fields)


def batch_of(names, number=6, seed=0):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(4, SIZE, (number, LENGTH))
    lengths = rng.integers(6, LENGTH + 1, number)
    tokens[np.arange(LENGTH) >= lengths[:, None]] = 0
    targets = np.where(
        (rng.random(tokens.shape) < 0.3) | (tokens == 0), -1, rng.integers(len(names), size=tokens.shape)
    )
    targets[:, 0] = -1
    batch = {"tokens": tokens, "segments": 0 * tokens, "targets": targets, "weights": np.arange(number) % 3 > 0}
    return {name: jnp.asarray(array, jnp.int32 if name != "weights" else float) for name, array in batch.items()}


def spans_of(tags):
    """(first, last, type) of the spans of a sentence's tags, word by word."""
    found, start = set(), None
    for i, tag in enumerate([*tags, "O"]):
        before = tags[i - 1] if i else "O"
        goes_on = tag.startswith("I-") and before != "O" and before[2:] == tag[2:]
        if start is not None and not goes_on:
            found.add((start, i - 1, before[2:]))
            start = None
        if tag != "O" and not goes_on:
            start = i
    return found


def of_loops(names, batch, logits):
    loss, right, number = 0.0, np.zeros(len(names)), np.zeros(len(names))
    spans = np.zeros(3)
    for row, targets, weight in zip(logits, batch["targets"], batch["weights"], strict=True):
        kept = [t for t in range(LENGTH) if targets[t] >= 0]
        if not weight:
            continue
        for t in kept:
            loss -= log_softmax(row[t])[targets[t]]
            right[targets[t]] += row[t].argmax() == targets[t]
            number[targets[t]] += 1
        ours, theirs = (spans_of([names[i] for i in tags]) for tags in (row[kept].argmax(-1), targets[np.array(kept)]))
        spans += len(ours & theirs), len(ours), len(theirs)
    return loss, right, number, spans


@pytest.mark.parametrize("names", [CHUNKS, ("DET", "NOUN", "VERB")], ids=["spans", "tags"])
def test_figures_are_those_of_loops(float64, names):
    task, batch = task_of(names), batch_of(names, 60)
    params = made_params(lambda: task.init(jax.random.key(0)), 1.0)
    params["head"]["bias"] *= 0.0  # so that the tokens decide, and predictions differ
    loss, totals = jax.jit(task.loss)(params, batch)
    logits = np.asarray(jax.jit(task.apply)(params, batch)[0])
    expected, right, number, spans = of_loops(names, {name: np.asarray(each) for name, each in batch.items()}, logits)
    figures = task.summarise(totals)
    np.testing.assert_allclose([loss, figures["loss"]], expected / number.sum(), rtol=1e-6)
    assert figures["accuracy"] == pytest.approx(right.sum() / number.sum())
    for name, ours, all_ in zip(names, right, number, strict=True):
        assert figures[f"accuracy_{name}"] == pytest.approx(ours / all_)
    if names == CHUNKS:
        assert spans.min() > 0 and figures["f1"] == pytest.approx(2 * spans[0] / (spans[1] + spans[2]))
    else:
        assert "f1" not in figures
    assert {name: array.shape for name, array in task.zero_totals().items()} == {
        name: array.shape for name, array in totals.items()
    }


@pytest.mark.parametrize("seed", range(3))
def test_spans_are_those_of_loops(seed):
    """Of random tags, half of them those of the sentence, with tokens that begin no word between them."""
    rng, task = np.random.default_rng(seed), task_of(CHUNKS)
    tags = rng.integers(len(CHUNKS), size=(40, LENGTH))
    predictions = np.where(rng.random(tags.shape) < 0.8, tags, rng.integers(len(CHUNKS), size=tags.shape))
    begins = rng.random(tags.shape) < 0.8
    found = [int(each.sum()) for each in task._spans(jnp.asarray(predictions), jnp.asarray(tags), jnp.asarray(begins))]
    expected = np.zeros(3, int)
    for row, own, kept in zip(predictions, tags, begins, strict=True):
        ours, theirs = (spans_of([CHUNKS[i] for i in each[kept]]) for each in (row, own))
        expected += len(ours & theirs), len(ours), len(theirs)
    assert found == expected.tolist()


def test_right_tags_have_an_f1_of_1_and_tags_without_spans_of_0():
    task = task_of(CHUNKS)
    tags = jnp.array([[0, 2, 4, 3, 3, 0, 0, 2, 1, 4]])
    begins = jnp.ones(tags.shape, bool)
    totals = {"loss": 0.0, "correct": np.ones(5), "count": np.ones(5)}
    for predictions, f1 in ((tags, 1.0), (jnp.full_like(tags, 4), 0.0)):
        spans = np.array([each.sum() for each in task._spans(predictions, tags, begins)])
        assert task.summarise(totals | {"spans": spans})["f1"] == f1


def test_a_batch_of_which_no_token_begins_a_word():
    """Its loss is 0, and so is its gradient."""
    task = task_of(CHUNKS)
    params, batch = made_params(lambda: task.init(jax.random.key(0)), 1.0), batch_of(CHUNKS)
    batch |= {"targets": jnp.full_like(batch["targets"], -1)}
    (loss, totals), gradient = jax.jit(jax.value_and_grad(task.loss, has_aux=True))(params, batch)
    assert loss == 0 and not any(leaf.any() for leaf in jax.tree.leaves(gradient))
    assert task.summarise(totals) == {"loss": 0, "accuracy": 0, "f1": 0}


@pytest.mark.slow
def test_without_positions_every_order_has_the_same_logits():
    """A word's logits depend on which words there are, and not on where they are."""
    names = ("a", "b", "c")
    encoder = Bert(SIZE, 8, (bert_block(2, 8),), max_length=LENGTH, absolute_positions=False)
    task = Tagging(model=TokenClassifier(encoder, 3), names=names, input_shape=(LENGTH,))
    params = made_params(lambda: task.init(jax.random.key(0)), 1.0)
    batch = batch_of(names)
    order = np.random.default_rng(0).permutation(LENGTH)
    moved = {name: batch[name][:, order] for name in ("tokens", "segments", "targets")}
    one, other = (task.apply(params, each)[0] for each in (batch, moved))
    np.testing.assert_allclose(one[:, order], other, atol=1e-5)
