"""Labels and numbers of sentences: losses, metrics and predictions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax.models.bert import Bert, SequenceClassifier, bert_block
from posattn_jax.tasks.sentence_prediction import SentencePrediction
from tests.support.made_params import made_params
from tests.support.slow import slow
from tests.tasks.test_masked_lm import LENGTH, SIZE, make_tokens

N = 7


def make_task(num_outputs, metric="accuracy"):
    encoder = Bert(SIZE, 8, (bert_block(2, 12),), max_length=LENGTH)
    model = SequenceClassifier(encoder, num_outputs)
    return SentencePrediction(model=model, input_shape=(LENGTH,), num_examples=N, metric=metric)


def make_batch(targets, groups=None):
    tokens = make_tokens(N)
    groups = jnp.zeros(N, jnp.int32) if groups is None else groups
    own = {"targets": jnp.asarray(targets), "groups": groups, "ids": jnp.arange(N)}
    return {"tokens": tokens, "segments": (tokens % 2).at[:, 6:].set(0), **own}


def parts_of(batch):
    """The batch as two, the second filled up with an example that does not count."""
    arrays = jax.device_get(batch)
    for rows, weights in (([0, 1, 2, 3], [1, 1, 1, 1]), ([4, 5, 6, 6], [1, 1, 1, 0])):
        yield {name: array[rows] for name, array in arrays.items()} | {"weights": np.float32(weights)}


@pytest.mark.parametrize("num_outputs", [slow(1), 3])
def test_loss_and_totals(num_outputs):
    task = make_task(num_outputs, "correlation" if num_outputs == 1 else "accuracy")
    targets = np.linspace(0, 5, N, dtype=np.float32) if num_outputs == 1 else np.arange(N) % 3
    batch = make_batch(targets)
    params = made_params(lambda: task.init(jax.random.key(0)))
    logits = np.asarray(
        jax.jit(task.model.apply)(
            {"params": params}, batch["tokens"], segments=batch["segments"], key_mask=batch["tokens"] != 0
        ),
        np.float64,
    )
    if num_outputs == 1:
        expected, predictions = np.mean((logits[:, 0] - targets) ** 2), logits[:, 0]
    else:
        expected = np.mean(np.log(np.exp(logits).sum(1)) - logits[np.arange(N), targets])
        predictions = logits.argmax(1)
    loss = jax.jit(task.loss)
    found, totals = loss(params, batch)
    assert found == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(totals["predictions"], predictions, rtol=1e-5)
    np.testing.assert_allclose(jax.jit(task.predict)(params, batch), predictions, rtol=1e-5)
    added = task.zero_totals()
    for part in parts_of(batch):
        added = jax.tree.map(np.add, added, jax.device_get(loss(params, part)[1]))
    for name in totals:
        np.testing.assert_allclose(totals[name], added[name], rtol=1e-5, atol=1e-6)
    figures = task.summarise(totals)
    assert figures["loss"] == pytest.approx(expected, rel=1e-5)
    assert loss(params, batch, jax.random.key(0))[0] != found  # dropout


def totals_of(predictions, targets, seen=None, groups=None):
    n = len(predictions)
    seen = np.ones(n) if seen is None else np.asarray(seen, float)
    groups = np.zeros(n) if groups is None else np.asarray(groups)
    arrays = {
        "predictions": np.asarray(predictions, float),
        "targets": np.asarray(targets, float),
        "groups": groups,
        "seen": seen,
    }
    return {"loss": 1.5 * seen.sum(), "count": seen.sum()} | arrays


@pytest.mark.parametrize("metric, right", [("accuracy", 2 / 3), ("accuracy_f1", (2 / 3 + 2 / 3) / 2)])
def test_examples_that_were_seen_several_times(metric, right):
    """Two are right each time; of the third, with label 1, both predictions are 0. Sums are those of two visits."""
    totals = totals_of([2, 0, 0], [2, 0, 2], seen=[2, 2, 2])
    assert make_task(2, metric).summarise(totals)["score"] == pytest.approx(right)


def test_a_number_that_was_predicted_several_times():
    """The mean of its predictions counts, not their sum."""
    totals = totals_of([2, 3, 9], [2, 2, 9], seen=[2, 1, 3])
    once = totals_of([1, 3, 3], [1, 2, 3])
    assert make_task(1, "correlation").summarise(totals) == make_task(1, "correlation").summarise(once)


def test_matthews():
    """TP 2, TN 1, FP 1, FN 1: (2 - 1) / sqrt(3 * 3 * 2 * 2)."""
    found = make_task(2, "matthews").summarise(totals_of([1, 1, 0, 1, 0], [1, 1, 0, 0, 1]))
    assert found == pytest.approx({"loss": 1.5, "score": 1 / 6, "matthews": 1 / 6, "accuracy": 0.6})


def test_accuracy_and_f1():
    """TP 2, FP 1, FN 1: F1 = 4 / 6."""
    found = make_task(2, "accuracy_f1").summarise(totals_of([1, 1, 0, 1, 0], [1, 1, 0, 0, 1]))
    assert found == pytest.approx({"loss": 1.5, "score": (0.6 + 2 / 3) / 2, "accuracy": 0.6, "f1": 2 / 3})


def test_correlations():
    predictions, targets = np.array([1.0, 2, 3, 10]), np.array([0.0, 1, 2, 3])
    found = make_task(1, "correlation").summarise(totals_of(predictions, targets))
    pearson = np.corrcoef(predictions, targets)[0, 1]
    assert found == pytest.approx({"loss": 1.5, "score": (pearson + 1) / 2, "pearson": pearson, "spearman": 1.0})


@pytest.mark.parametrize("metric, score", [("matthews", 0.0), ("correlation", 0.0), ("accuracy_f1", 0.2)])
def test_telling_always_the_same_is_no_error(metric, score):
    targets = [1, 0, 0, 1, 0] if metric != "accuracy_f1" else [1, 1, 1, 0, 0]
    found = make_task(1 if metric == "correlation" else 2, metric).summarise(totals_of([0.0] * 5, targets))
    assert found["score"] == pytest.approx(score)


def test_what_was_not_seen_counts_nothing_and_groups_are_apart():
    task = make_task(3)
    found = task.summarise(totals_of([0, 1, 2, 2, 2], [0, 1, 0, 2, 0], seen=[1, 1, 0, 1, 1], groups=[0, 0, 0, 1, 1]))
    expected = {"loss": 1.5, "score": 1.0, "accuracy": 1.0, "score_mismatched": 0.5, "accuracy_mismatched": 0.5}
    assert found == pytest.approx(expected)


def test_always_the_same():
    """The most frequent label of training, not of what is judged; of numbers the mean."""
    task = make_task(2)
    found = task.always_the_same(np.array([1, 1, 0]), np.array([0, 0, 1, 0, 1]), np.array([0, 0, 0, 0, 1]))
    assert found == {"score": 0.25, "accuracy": 0.25, "score_mismatched": 1.0, "accuracy_mismatched": 1.0}
    numbers = make_task(1, "correlation").always_the_same(np.array([1.0, 2]), np.array([0.0, 5]), np.zeros(2))
    assert numbers["score"] == 0
