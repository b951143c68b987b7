"""The task of translation: its loss against loops, and the sentences that it decodes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax.data.tokenizers.tokenizer import BEGIN, END, PAD
from posattn_jax.tasks.translation import Translation
from tests.models.test_seq2seq import V, built
from tests.support.slow import slow

SOURCE = np.array([[5, 6, 7, END], [8, END, PAD, PAD], [PAD] * 4])
TARGET = np.array([[9, 4, END, PAD], [6, 7, 8, END], [PAD] * 4])


def task_of(mixer, **fields):
    model, params = built(mixer)
    return Translation(model=model, begin_id=BEGIN, end_id=END, pad_id=PAD, **fields), params


@functools.cache
def task_smoothed():
    """A task, its parameters, and its loss, traced once for all tests."""
    task, params = task_of("rposnet", label_smoothing=0.2, batch_tokens=10)
    return task, params, jax.jit(task.loss)


def batch_of(weights=None):
    batch = {"source": jnp.asarray(SOURCE), "target": jnp.asarray(TARGET)}
    return batch if weights is None else batch | {"weights": jnp.asarray(weights)}


@pytest.mark.slow
def test_loss_of_smoothed_labels(float64):
    """Token by token from the model's probabilities; PAD, and examples of weight 0, count for nothing."""
    task, params, loss_of = task_smoothed()
    begun = np.concatenate([np.full((3, 1), BEGIN), TARGET[:, :-1]], 1)
    logits = np.asarray(jax.jit(task.model.apply)({"params": params}, jnp.asarray(SOURCE), jnp.asarray(begun)))
    for weights in (None, [1.0, 0.0, 1.0]):
        loss = smoothed = correct = count = 0.0
        for b, t in np.argwhere(TARGET != PAD):
            weight = 1.0 if weights is None else weights[b]
            log_p = logits[b, t] - np.log(np.exp(logits[b, t]).sum())
            loss -= weight * log_p[TARGET[b, t]]
            smoothed -= weight * (0.8 * log_p[TARGET[b, t]] + 0.2 * log_p.mean())
            correct += weight * (log_p.argmax() == TARGET[b, t])
            count += weight
        found, totals = loss_of(params, batch_of(weights))
        np.testing.assert_allclose(found, smoothed / 10, rtol=1e-6)
        np.testing.assert_allclose(
            [totals["loss"], totals["correct"], totals["count"]], [loss, correct, count], rtol=1e-6
        )
        figures = task.summarise(totals)
        np.testing.assert_allclose(figures["perplexity"], np.exp(loss / count), rtol=1e-6)
        assert figures["log_likelihood"] == -figures["loss"]


@pytest.mark.slow
def test_sentences_in_one_row(float64):
    """Their loss and totals are the sums of each alone: every target begins anew."""
    _, params, loss_of = task_smoothed()
    alone = batch_of()
    packed = {"source": [[5, 6, 7, END, 8, END, PAD]], "source_segment_ids": [[1, 1, 1, 1, 2, 2, 0]]}
    packed |= {"target": [[9, 4, END, 6, 7, 8, END, PAD]], "target_segment_ids": [[1, 1, 1, 2, 2, 2, 2, 0]]}
    found = loss_of(params, {name: jnp.asarray(array) for name, array in packed.items()})
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), found, loss_of(params, alone))


@pytest.mark.slow
def test_rows_without_example_have_no_gradient(float64):
    task, params = task_of("rposnet", label_smoothing=0.0)
    gradient = jax.jit(jax.grad(lambda params, batch: task.loss(params, batch)[0]))
    whole, empty = batch_of(), {name: array[2:] for name, array in batch_of().items()}
    first = {name: array[:2] for name, array in whole.items()}
    found, expected = (jax.tree.leaves(gradient(params, batch)) for batch in (whole, first))
    largest = max(np.abs(array).max() for array in expected)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6 * largest)  # computed in float32
    assert all(np.all(np.asarray(x) == 0) for x in jax.tree.leaves(gradient(params, empty)))


@pytest.mark.parametrize("mixer", [slow("rposnet_edc"), slow("transformer")])
def test_a_beam_of_one_is_greedy(float64, mixer):
    """Against the whole model, run again for every token."""
    task, params = task_of(mixer)
    run = jax.jit(lambda source, target: task.model.apply({"params": params}, source, target))
    tokens, _ = task.translate(params, jnp.asarray(SOURCE[:2]), jnp.array([6, 3]), 1, 6)
    for b, limit in enumerate((6, 3)):
        begun = [BEGIN]
        while len(begun) <= limit and (len(begun) == 1 or begun[-1] != END):
            padded = np.array([begun + [PAD] * (7 - len(begun))])
            logits = np.array(run(jnp.asarray(SOURCE[b : b + 1]), jnp.asarray(padded)))[0, len(begun) - 1]
            logits[[PAD, BEGIN]] = -np.inf
            begun.append(END if len(begun) == limit else int(logits.argmax()))
        expected = begun[1:] + [PAD] * (7 - len(begun))
        assert np.asarray(tokens)[b].tolist() == expected


@pytest.mark.slow
def test_a_beam_finds_what_is_likelier(float64):
    """The scores are the model's mean log-probabilities a token; a wide beam's are no worse than greedy ones."""
    task, params = task_of("rposnet")
    source, limits = jnp.asarray(SOURCE[:2]), jnp.array([4, 4])
    scores = {}
    run = jax.jit(task.model.apply)
    for beam in (1, 8):
        tokens, scores[beam] = task.translate(params, source, limits, beam, 4)
        for b, row in enumerate(np.asarray(tokens)):
            length = int((row != PAD).sum())
            begun = jnp.asarray(np.concatenate([[BEGIN], row[:-1]])[None])
            log_p = jax.nn.log_softmax(run({"params": params}, source[b : b + 1], begun)[0])
            np.testing.assert_allclose(scores[beam][b], log_p[np.arange(length), row[:length]].mean(), rtol=1e-4)
    assert (np.asarray(scores[8]) >= np.asarray(scores[1]) - 1e-6).all()


def test_what_positions_alone_make(float64):
    """The energies of every mixer that knows no token, for figures; none of the Transformer."""
    task, params = task_of("rposnet_edc", length=5)
    made_of = jax.jit(task.describe)(params)
    names = ["encoder_0", *(f"{place}_{i}" for place in ("decoder", "cross") for i in range(2))]
    assert {name: out["energies"].shape for name, out in made_of.items()} == dict.fromkeys(names, (2, 5, 5))
    mixing, own = task.model.encoder_blocks[0].mixing, params["encoder_blocks_0"]["mixing"]["energies"]
    bound = functools.partial(np.einsum, "thd,rhd->htr")
    norm, table = params["encoder_positions"]["norm"], np.asarray(params["encoder_positions"]["vectors"]["table"])[:5]
    features = (table - table.mean(-1, keepdims=True)) / np.sqrt(table.var(-1, keepdims=True) + 1e-6)
    features = features * norm["scale"] + norm["bias"]
    query = np.einsum("tc,chd->thd", features, own["query"]["kernel"]) + own["query"]["bias"]
    by_offset = bound(query, own["relative"]) / 2
    context = mixing.energies.context
    for t in range(5):
        for s in range(5):
            entry = min(max(s - t, -context), context) + context
            np.testing.assert_allclose(made_of["encoder_0"]["energies"][:, t, s], by_offset[:, t, entry], atol=1e-5)
    plain, its = task_of("transformer")
    assert plain.describe(its) == {} and plain.spans({}) == {} and V == 11
