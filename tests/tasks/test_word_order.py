"""Sentences as written, swapped and shuffled, against loops over their words."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from posattn_jax.models.bert import Bert, SequenceClassifier, bert_block
from posattn_jax.nn.encodings import KernelEncoding
from posattn_jax.nn.terms import Content, Positional, RelativeBias
from posattn_jax.tasks.word_order import WordOrder
from tests.support.made_params import made_params
from tests.support.slow import slow

SIZE, LENGTH = 30, 14
# Words as pieces; the last stays. Some are the same, neighbours too, and pieces of one are those of another.
SENTENCES = [
    [[5], [6, 7], [8], [9]],
    [[5, 6], [5], [6, 5], [5, 6], [10, 11, 12]],
    [[7], [7], [8, 7], [9], [7], [7]],
    [[4], [5], [6], [7], [8], [9], [10], [11], [12], [13], [14], [15]],
]


def laid_out(sentences):
    """{"tokens", "segments", "words", "ids"}, token by token."""
    tokens, words = np.zeros((2, len(sentences), LENGTH), int)
    for row, numbers, sentence in zip(tokens, words, sentences, strict=True):
        row[0], place = 1, 1
        numbers[:] = len(sentence)
        numbers[0] = 0
        for number, word in enumerate(sentence, start=1):
            for piece in word:
                row[place], numbers[place] = piece, number
                place += 1
        row[place] = 2
    batch = {"tokens": tokens, "segments": 0 * tokens, "words": words, "ids": np.arange(len(sentences))}
    return {name: jnp.asarray(array) for name, array in batch.items()}


def swaps_of(sentence):
    """What one swap of two neighbours before the last makes of it, if anything."""
    made = []
    for i in range(len(sentence) - 2):
        other = list(sentence)
        other[i], other[i + 1] = sentence[i + 1], sentence[i]
        if other != sentence:
            made.append(other)
    return made


def orders_of(sentence):
    """Every order of the words before the last that is neither the sentence nor one swap from it, each once."""
    near, found = [sentence, *swaps_of(sentence)], []
    for order in itertools.permutations(sentence[:-1]):
        other = [*order, sentence[-1]]
        if other not in near and other not in found:
            found.append(other)
    return found


def make_task(*terms):
    block = bert_block(2, 12, terms=(Content(), *terms), dropout_rate=0.3)
    encoder = Bert(SIZE, 8, (block,), absolute_positions=False)
    return WordOrder(model=SequenceClassifier(encoder, 3), input_shape=(LENGTH,))


def composite():
    """Its kernels reach over a sentence: one block sees every swap."""
    return make_task(RelativeBias((27,)), Positional(KernelEncoding((27,))))


@pytest.fixture(scope="module")
def task():
    return composite()


@pytest.fixture(scope="module")
def params(task):
    return made_params(lambda: task.init(jax.random.key(0)))


@pytest.mark.parametrize("sentence", [slow(SENTENCES[0]), *SENTENCES[1:3]], ids=str)
def test_every_swap_and_every_order_is_as_frequent(task, sentence):
    """Of orders that repeated words make in more ways than one, as many times as frequent."""
    runs = 3000
    batch = laid_out([sentence] * runs)
    ways = jax.jit(task.all_ways)(jax.random.key(0), batch)
    np.testing.assert_array_equal(ways["targets"], list(range(3)) * runs)
    written, swapped, shuffled = np.asarray(ways["tokens"]).reshape(runs, 3, LENGTH).swapaxes(0, 1)
    np.testing.assert_array_equal(written, batch["tokens"])
    swaps, orders = swaps_of(sentence), orders_of(sentence)
    all_orders = [[*order, sentence[-1]] for order in itertools.permutations(sentence[:-1])]
    weights = np.array([all_orders.count(each) for each in orders])
    for found, expected, shares in (
        (swapped, swaps, np.full(len(swaps), 1 / len(swaps))),
        (shuffled, orders, weights / weights.sum()),
    ):
        kinds, counts = np.unique(found, axis=0, return_counts=True)
        by_kind = {tuple(kind): count for kind, count in zip(kinds.tolist(), counts, strict=True)}
        rows = np.asarray(laid_out(expected)["tokens"]).tolist()
        assert set(by_kind) == set(map(tuple, rows))
        for row, share in zip(rows, shares, strict=True):
            assert abs(by_kind[tuple(row)] / runs - share) < 4.5 * np.sqrt(share * (1 - share) / runs)


def test_a_sentence_without_room_for_padding(task):
    """Its swaps are all drawn, and its words before the last come to every place."""
    sentence, runs = SENTENCES[3], 2000
    ways = jax.jit(task.all_ways)(jax.random.key(1), laid_out([sentence] * runs))
    _, swapped, shuffled = np.asarray(ways["tokens"]).reshape(runs, 3, LENGTH).swapaxes(0, 1)
    rows = np.asarray(laid_out(swaps_of(sentence))["tokens"]).tolist()
    assert set(map(tuple, swapped.tolist())) == set(map(tuple, rows))
    for place in range(1, len(sentence)):
        assert set(shuffled[:, place]) == set(range(4, 15))
    np.testing.assert_array_equal(shuffled[:, [0, -2, -1]], [[1, 15, 2]] * runs)


def test_the_draw_depends_on_key_and_sentence_alone(task):
    batch, draw = laid_out(SENTENCES), jax.jit(task.all_ways)
    whole = draw(jax.random.key(0), batch)["tokens"]
    some = draw(jax.random.key(0), {name: array[2:] for name, array in batch.items()})["tokens"]
    np.testing.assert_array_equal(whole[6:], some)
    assert (draw(jax.random.key(1), batch)["tokens"] != whole).any()


def test_loss_and_accuracies_equal_the_oracle(task, params):
    """Sentence by sentence and way by way; one that does not count is left out."""
    batch = laid_out(SENTENCES) | {"weights": jnp.array([1.0, 1.0, 0.0, 1.0])}
    ways = jax.jit(task.all_ways)(jax.random.key(0), batch)
    apply = jax.jit(lambda tokens: task.model.apply({"params": params}, tokens, key_mask=tokens != 0))
    losses, correct = [], np.zeros((4, 3))
    for sentence, way in itertools.product((0, 1, 3), range(3)):
        logits = np.asarray(apply(ways["tokens"][3 * sentence + way][None]), np.float64)[0]
        losses.append(-log_softmax(logits)[way])
        correct[sentence, way] = logits.argmax() == way
    loss_of = jax.jit(task.loss)
    loss, totals = loss_of(params, batch)
    assert loss == pytest.approx(np.mean(losses), rel=1e-5)
    shares = dict(zip(("as_written", "swapped", "shuffled"), correct.sum(0) / 3, strict=True))
    expected = {"loss": np.mean(losses), "accuracy": correct.sum() / 9}
    expected |= {f"accuracy_{name}": share for name, share in shares.items()}
    assert task.summarise(totals) == pytest.approx(expected, rel=1e-5)
    added = task.zero_totals()
    for i in range(4):  # each next to three that do not count
        one = batch | {"weights": batch["weights"] * (jnp.arange(4) == i)}
        added = jax.tree.map(np.add, added, jax.device_get(loss_of(params, one)[1]))
    for name, total in totals.items():
        np.testing.assert_allclose(total, added[name], rtol=1e-5)


@pytest.mark.slow
def test_training_draws_anew_and_every_weight_learns(task, params):
    batch = laid_out(SENTENCES)
    loss = jax.jit(jax.value_and_grad(task.loss, has_aux=True))
    (drawn, gradient), (again, _), (other, _) = (
        (float(value), gradient)
        for (value, _), gradient in (loss(params, batch, jax.random.key(seed)) for seed in (0, 0, 1))
    )
    assert drawn == again != other
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradient):
        assert jnp.isfinite(leaf).all(), path
        assert path[-1].key == "bias" or jnp.abs(leaf).max() > 1e-6, path  # no softmax sees a bias of keys


@pytest.mark.parametrize("knows_positions", [False, True])
def test_only_positions_tell_the_ways_apart(knows_positions, task):
    """Without them the logits of all three are the same, whatever the parameters: one in three is right."""
    task = task if knows_positions else make_task()
    params = made_params(lambda: task.init(jax.random.key(0)), deviation=0.6)
    batch = laid_out(SENTENCES)
    ways = jax.jit(task.all_ways)(jax.random.key(0), batch)
    logits = np.asarray(jax.jit(lambda params: task.apply(params, ways)[0])(params)).reshape(4, 3, 3)
    difference = np.abs(logits - logits[:, :1]).max(-1)[:, 1:]
    if knows_positions:
        assert difference.max(0).min() > 1e-3  # of some sentence, of both ways
    else:
        assert difference.max() < 1e-5
        assert task.summarise(jax.jit(task.loss)(params, batch)[1])["accuracy"] == pytest.approx(1 / 3)
