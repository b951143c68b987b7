"""Masking, and the loss of the tokens that it hides."""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax.models.bert import Bert, MaskedLanguageModel, bert_block
from posattn_jax.nn.span import GaussianSpan
from posattn_jax.tasks.masked_lm import MaskedLanguageModelling
from tests.support.made_params import made_params
from tests.support.slow import slow

SIZE, LENGTH = 30, 12
MASKED = {"vocabulary_size": SIZE, "num_special": 4, "mask_id": 3}


def make_task(share=0.15):
    blocks = (bert_block(2, 12, dropout_rate=0.3),)
    model = MaskedLanguageModel(Bert(SIZE, 8, blocks, embedding_dim=6, max_length=LENGTH, dropout_rate=0.3))
    return MaskedLanguageModelling(model=model, input_shape=(LENGTH,), mask_share=share, **MASKED)


draw = jax.jit(make_task().hide)


def make_tokens(num_sequences, length=LENGTH, seed=0):
    """[CLS] tokens [SEP], of any length, and padding."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(4, SIZE, (num_sequences, length))
    ends = rng.integers(2, length, num_sequences)
    tokens[:, 0] = 1
    tokens[np.arange(num_sequences), ends] = 2
    return jnp.asarray(np.where(np.arange(length) > ends[:, None], 0, tokens))


def of_loops(masking, key, tokens, ids):
    """What is shown of each sequence and the places that are hidden, token by token, from the same uniform numbers."""
    shown, hidden = tokens.copy(), []
    for row, number in zip(shown, ids, strict=True):
        numbers = jax.random.uniform(jax.random.fold_in(key, number), (3, len(row)))
        places = set()
        for place, (token, chance, kind, other) in enumerate(zip(row.tolist(), *np.asarray(numbers), strict=True)):
            if token < masking.num_special or chance >= np.float32(masking.mask_share):
                continue
            places.add(place)
            if kind < np.float32(0.8):
                row[place] = masking.mask_id
            elif kind < np.float32(0.9):
                row[place] = masking.num_special + int(other * (masking.vocabulary_size - masking.num_special))
        hidden.append(places)
    return shown, hidden


@pytest.mark.parametrize("share", [0.15, 0.4, 1.0])
def test_against_loops(share):
    masking, tokens, ids = make_task(share), make_tokens(200), np.arange(200) + 7
    shown, places, valid = map(np.asarray, jax.jit(masking.hide)(jax.random.key(0), tokens, ids))
    expected, hidden = of_loops(masking, jax.random.key(0), np.asarray(tokens), ids)
    np.testing.assert_array_equal(shown, expected)
    for place, chosen, own in zip(places, valid, hidden, strict=True):
        assert set(place[chosen]) == own and chosen.sum() == len(own)


@pytest.mark.parametrize(
    "ordinary, share", [(1, 0.15), (7, 0.4), (30, 0.4), slow(1, 0.4), slow(7, 0.15), slow(30, 0.15)]
)
def test_each_token_is_drawn_whatever_the_others_are(ordinary, share):
    """Of n ordinary tokens Binomial(n, share): its mean, its variance, and how often there is none at all."""
    runs, length = 20_000, 40
    tokens = jnp.tile(jnp.where(jnp.arange(length) < ordinary, 9, 0), (runs, 1))
    _, places, valid = jax.jit(make_task(share).hide)(jax.random.key(2), tokens, jnp.arange(runs))
    counts = np.asarray(valid.sum(1))
    mean, variance = ordinary * share, ordinary * share * (1 - share)
    assert abs(counts.mean() - mean) < 4 * np.sqrt(variance / runs)
    # The variance of a sample's variance, from the fourth moment of the binomial.
    fourth = variance * (1 + (3 * ordinary - 6) * share * (1 - share))
    assert abs(counts.var() - variance) < 4 * np.sqrt((fourth - variance**2) / runs)
    none = (1 - share) ** ordinary
    assert abs((counts == 0).mean() - none) <= 4 * np.sqrt(none * (1 - none) / runs)
    drawn = np.bincount(np.asarray(places)[np.asarray(valid)], minlength=length) / runs
    np.testing.assert_allclose(drawn[:ordinary], share, atol=4.5 * np.sqrt(share * (1 - share) / runs))
    assert not drawn[ordinary:].any()


@pytest.mark.parametrize("length", [1, 5, 40, 128])
@pytest.mark.parametrize("share", [0.15, 0.4, 1.0])
def test_there_is_room_for_all_but_one_sequence_in_a_billion(length, share):
    p, room = Fraction(share), make_task(share).most(length)

    def more(number):
        terms = (math.comb(length, k) * p**k * (1 - p) ** (length - k) for k in range(number + 1, length + 1))
        return float(sum(terms))

    assert more(room) <= 1e-9 * (1 + 1e-6)
    assert room == length or length == 1 or more(room - 1) > 1e-9  # and for no more


def test_what_there_is_no_room_for_stays_as_it_is(monkeypatch):
    monkeypatch.setattr(MaskedLanguageModelling, "most", lambda self, length: 2)
    tokens = jnp.full((500, LENGTH), 7)
    hide = jax.jit(make_task(0.4).hide)
    shown, places, valid = map(np.asarray, hide(jax.random.key(0), tokens, jnp.arange(500)))
    assert valid.sum(1).max() == 2
    for row, place, chosen in zip(shown, places, valid, strict=True):
        assert set(np.flatnonzero(row != 7)) <= set(place[chosen])


def test_eight_in_ten_are_masked_and_one_is_another():
    tokens = jnp.full((20_000, LENGTH), 7)
    shown, places, valid = draw(jax.random.key(1), tokens, jnp.arange(20_000))
    hidden = np.take_along_axis(np.asarray(shown), np.asarray(places), 1)[np.asarray(valid)]
    n = len(hidden)
    for found, expected in (
        (hidden == 3, 0.8),
        (hidden == 7, 0.1 + 0.1 / 26),
        ((hidden != 3) & (hidden != 7), 0.1 * 25 / 26),
    ):
        assert abs(found.mean() - expected) < 4 * np.sqrt(expected * (1 - expected) / n)
    others = hidden[(hidden != 3) & (hidden != 7)]
    assert set(others) == set(range(4, SIZE)) - {7}  # any that is not special


def test_the_draw_depends_on_key_and_sequence_alone():
    tokens = make_tokens(9)
    shown, *_ = draw(jax.random.key(0), tokens, jnp.arange(9))
    some, *_ = draw(jax.random.key(0), tokens[3:5], jnp.arange(3, 5))
    np.testing.assert_array_equal(shown[3:5], some)
    other, *_ = draw(jax.random.key(1), tokens, jnp.arange(9))
    assert (shown != other).any()
    same = draw(jax.random.key(0), jnp.tile(tokens[:1], (50, 1)), jnp.arange(50))[0]
    assert len(np.unique(np.asarray(same), axis=0)) > 1


def test_a_sequence_of_special_tokens_alone_hides_nothing():
    tokens = jnp.array([[1, 2, 2, 0, 0]])
    shown, _, valid = draw(jax.random.key(0), tokens, jnp.arange(1))
    np.testing.assert_array_equal(shown, tokens)
    assert not valid.any()


def test_share_is_a_share(unchecked):
    for share in (0, 1.1):
        with pytest.raises(ValueError, match=f"^mask_share={share}"):
            make_task(share)


@pytest.fixture(scope="module")
def task():
    return make_task()


@pytest.fixture(scope="module")
def params(task):
    return made_params(lambda: task.init(jax.random.key(0)))


@pytest.fixture(scope="module")
def loss_of(task):
    """The loss, traced once for all tests."""
    return jax.jit(task.loss)


def make_batch(num_sequences=5):
    tokens = make_tokens(num_sequences)
    return {"tokens": tokens, "segments": jnp.zeros_like(tokens), "ids": jnp.arange(num_sequences) + 3}


def test_loss_is_that_of_the_hidden_tokens(task, params, loss_of):
    """Against numpy, from the logits of every place of what the model was shown."""
    batch = make_batch()
    shown, places, valid = map(np.asarray, draw(jax.random.key(0), batch["tokens"], batch["ids"]))
    logits = jax.jit(lambda shown: task.model.apply({"params": params}, shown, key_mask=batch["tokens"] != 0))(shown)
    logits = np.asarray(logits, np.float64)
    losses, correct = [], []
    for row, places_of, valid_of, tokens in zip(logits, places, valid, np.asarray(batch["tokens"]), strict=True):
        for place in places_of[valid_of]:
            scores = row[place]
            losses.append(np.log(np.exp(scores - scores.max()).sum()) + scores.max() - scores[tokens[place]])
            correct.append(scores.argmax() == tokens[place])
    loss, totals = loss_of(params, batch)
    assert loss == pytest.approx(np.mean(losses), rel=1e-5)
    figures = task.summarise(totals)
    assert figures == pytest.approx(
        {"loss": np.mean(losses), "accuracy": np.mean(correct), "perplexity": np.exp(np.mean(losses))}, rel=1e-5
    )


def test_totals_add_up_and_padding_of_a_batch_counts_nothing(params, loss_of):
    batch = jax.tree.map(np.asarray, make_batch())
    _, whole = loss_of(params, batch | {"weights": np.ones(5, np.float32)})
    first = {name: array[:3] for name, array in batch.items()} | {"weights": np.ones(3, np.float32)}
    last = {name: array[[3, 4, 4]] for name, array in batch.items()} | {"weights": np.float32([1, 1, 0])}
    added = jax.tree.map(np.add, *jax.device_get((loss_of(params, first)[1], loss_of(params, last)[1])))
    for name in whole:
        np.testing.assert_allclose(whole[name], added[name], rtol=1e-5)


def test_a_batch_of_which_nothing_is_hidden(task, params):
    """Its loss is 0, and so is its gradient."""
    tokens = jnp.array([[1, 2, 2] + [0] * (LENGTH - 3)])
    batch = {"tokens": tokens, "segments": jnp.zeros_like(tokens), "ids": jnp.arange(1)}
    (loss, totals), gradient = jax.jit(jax.value_and_grad(task.loss, has_aux=True))(params, batch)
    assert loss == 0 and not any(leaf.any() for leaf in jax.tree.leaves(gradient))
    assert task.summarise(totals) == {"loss": 0, "accuracy": 0, "perplexity": 1}


def test_training_draws_anew_and_evaluation_does_not(params, loss_of):
    batch = make_batch()
    assert loss_of(params, batch)[0] == loss_of(params, batch)[0]
    drawn = [loss_of(params, batch, jax.random.key(seed))[0] for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.slow
def test_a_hidden_token_reaches_the_loss_as_a_target_alone(task, params, loss_of):
    """Of a sequence whose one predicted token is masked, any other in its place moves the loss by the logits alone."""
    tokens = jnp.array([[1, 9, 2] + [0] * (LENGTH - 3)])
    batch = {"tokens": tokens, "segments": jnp.zeros_like(tokens)}
    ids = jnp.arange(200)
    drawn = draw(jax.random.key(0), jnp.tile(tokens, (200, 1)), ids)[0][:, 1]
    batch["ids"] = ids[drawn == 3][:1]  # a sequence whose draw is the mask
    apply = jax.jit(lambda batch: jax.nn.log_softmax(task.apply(params, batch)[0][0, 1]))
    for token in (9, 10, 20):
        own = batch | {"tokens": tokens.at[0, 1].set(token)}
        shown = own["tokens"].at[0, 1].set(3)
        expected = -float(apply(own | {"tokens": shown})[token])
        assert float(loss_of(params, own)[0]) == pytest.approx(expected, rel=1e-5)


def test_segments_are_seen(params, loss_of):
    batch = make_batch()
    second = batch | {"segments": batch["segments"].at[:, 3:].set(1)}
    assert abs(loss_of(params, batch)[0] - loss_of(params, second)[0]) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["auto", slow("window")])
def test_a_learned_span_in_bert(implementation):
    """It is priced, told of, and bounded for implementations of a static size."""
    block = bert_block(2, 12, span=GaussianSpan(initial_sigma=0.1), implementation=implementation, dropout_rate=0.0)
    fields = {"input_shape": (LENGTH,), "span_penalty": 2.0} | MASKED
    task = MaskedLanguageModelling(model=MaskedLanguageModel(Bert(SIZE, 8, (block,), max_length=LENGTH)), **fields)
    params, batch = jax.jit(task.init)(jax.random.key(0)), make_batch()
    bounded = task.within(((4,),))
    spans = task.spans(jax.jit(task.describe)(params))["block_0"]
    (size,) = spans["size"]
    loss, totals = jax.jit(bounded.loss)(params, batch)
    penalty = loss - totals["loss"] / totals["count"]
    assert 0 < penalty < 2 and size < 2 * LENGTH - 1
    if implementation == "auto":
        assert float(jax.jit(task.loss)(params, batch)[0]) == pytest.approx(float(loss), rel=1e-5)


def test_describe_and_spans(task, params):
    assert jax.jit(task.describe)(params) == {"block_0": {}}
    assert task.spans({"block_0": {}}) == {}
    (half,) = jax.jit(task.half_spans)(params)
    np.testing.assert_array_equal(half, [LENGTH - 1])
    assert task.within(((3,),)).span_bounds == ((3,),)
