"""Beam search against loops in Python, on a synthetic model whose cache is a hash of all that came before."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax.models.beam_search import beam_search
from tests.support.slow import slow

PAD, BEGIN, END = 0, 1, 2
IDS = {"begin_id": BEGIN, "end_id": END, "pad_id": PAD}
PLACES = 8


class MadeModel:
    """logits = previous[token] + places[position] + h @ out + sentence, h = tanh(h @ mix + hashes[token])."""

    def __init__(self, vocabulary_size, batch_size, seed=0, end_bias=0.0):
        rng = np.random.default_rng(seed)
        self.v, self.b, width = vocabulary_size, batch_size, 4
        self.previous = rng.normal(size=(self.v, self.v))
        self.places = rng.normal(size=(PLACES, self.v))
        self.mix, self.hashes = rng.normal(size=(width, width)), rng.normal(size=(self.v, width))
        self.out = 2 * rng.normal(size=(width, self.v))
        self.sentence = rng.normal(size=(batch_size, self.v))
        self.sentence[:, END] += end_bias
        self.h = rng.normal(size=(batch_size, width))

    def log_probs(self, b, prefix):
        """Of what follows a prefix, in float64."""
        h = self.h[b]
        for token in (BEGIN, *prefix):
            h = np.tanh(h @ self.mix + self.hashes[token])
        logits = self.previous[(BEGIN, *prefix)[-1]] + self.places[len(prefix)] + h @ self.out + self.sentence[b]
        return logits - np.log(np.exp(logits).sum())

    def search(self, beam_size, max_lengths, max_steps=4, sentences=None, dtype=None, edit=None, watch=None, **fields):
        """Of the sentences that are named; `edit` changes logits, `watch` is told every position."""
        sentences = list(range(self.b)) if sentences is None else sentences
        rows = np.repeat(sentences, beam_size)

        def step(tokens, position, cache):
            if watch is not None:
                jax.debug.callback(watch, position)
            h = jnp.tanh(cache["h"] @ self.mix + jnp.asarray(self.hashes)[tokens])
            logits = jnp.asarray(self.previous)[tokens] + jnp.asarray(self.places)[position]
            logits = (logits + h @ self.out + self.sentence[rows]).astype(dtype or float)
            return edit(logits, position) if edit else logits, {"h": h}

        search = functools.partial(
            beam_search, step, batch_size=len(sentences), beam_size=beam_size, max_steps=max_steps, **IDS, **fields
        )
        found = jax.jit(lambda h, lengths: search({"h": h}, max_lengths=lengths))
        tokens, scores = found(jnp.asarray(self.h[rows], jnp.float32), jnp.asarray(max_lengths))
        return np.asarray(tokens), np.asarray(scores)


def loop(model, b, beam_size, max_length):
    """[(score, tokens)] of a sentence, the best first."""
    beam, total = [(0.0, ())], {(): 0.0}
    while any(not y or y[-1] != END for _, y in beam):
        candidates = []
        for score, y in beam:
            if y and y[-1] == END:
                candidates.append((score, y))
                continue
            log_probs = model.log_probs(b, y)
            for token in [END] if len(y) + 1 == max_length else range(END, model.v):
                total[*y, token] = total[y] + log_probs[token]
                candidates.append((total[*y, token] / (len(y) + 1), (*y, token)))
        beam = sorted(candidates, key=lambda each: -each[0])[:beam_size]
    return beam


def exhaustive(model, b, max_length):
    """All hypotheses there are."""
    found = []

    def extend(y, total):
        log_probs = model.log_probs(b, y)
        found.append(((total + log_probs[END]) / (len(y) + 1), (*y, END)))
        if len(y) + 1 < max_length:
            for token in range(END + 1, model.v):
                extend((*y, token), total + log_probs[token])

    extend((), 0.0)
    return sorted(found, key=lambda each: -each[0])


def assert_found(tokens, scores, expected):
    """Hypotheses [k m] of a sentence are those, and what is left over is dead."""
    padded = [[*y, *[PAD] * (tokens.shape[1] - len(y))] for _, y in expected]
    np.testing.assert_array_equal(tokens[: len(padded)], padded)
    np.testing.assert_allclose(scores[: len(padded)], [score for score, _ in expected], rtol=2e-5)
    assert (tokens[len(padded) :] == PAD).all() and np.isneginf(scores[len(padded) :]).all()


@pytest.mark.parametrize("seed", range(2))
def test_a_wide_beam_finds_all_there_is(seed):
    """15, 3 and 1 hypotheses, in a beam of 16."""
    model, max_lengths = MadeModel(5, 3, seed), (4, 2, 1)
    tokens, scores = model.search(16, max_lengths)
    for b, max_length in enumerate(max_lengths):
        assert_found(tokens[b], scores[b], exhaustive(model, b, max_length))


@pytest.mark.parametrize("beam_size", [2, 5])
def test_a_narrow_beam_is_that_of_a_loop(beam_size):
    model, max_lengths = MadeModel(9, 6), (8, 7, 5, 3, 2, 8)
    tokens, scores = model.search(beam_size, max_lengths, max_steps=8)
    for b, max_length in enumerate(max_lengths):
        assert_found(tokens[b], scores[b], loop(model, b, beam_size, max_length))


def test_a_beam_of_one_is_greedy():
    model, max_lengths = MadeModel(9, 8, 3, end_bias=-1.0), (8,) * 8
    tokens, scores = model.search(1, max_lengths, max_steps=8)
    for b in range(8):
        y, total = (), 0.0
        while END not in y:
            log_probs = model.log_probs(b, y)
            best = END if len(y) == 7 else END + int(np.argmax(log_probs[END:]))
            y, total = (*y, best), total + log_probs[best]
        assert_found(tokens[b], scores[b], [(total / len(y), y)])
    assert len({tuple(y) for y in tokens[:, 0].tolist()}) > 3


def test_greedy_where_rounding_makes_sums_equal():
    """log p = -30 - 1e-6 and -30 are one float32; the larger logit is still chosen."""
    logits = jnp.array([0.0, 30, -jnp.inf, -2e-6, -1e-6])
    edit = lambda _, position: jnp.where(position == 0, logits, logits.at[END].set(60))[None]
    tokens, _ = MadeModel(5, 1).search(1, [4], edit=edit)
    assert tokens.tolist() == [[[4, END, PAD, PAD]]]


@pytest.mark.parametrize("only_best", [slow(False), True])
def test_sentences_do_not_touch_each_other(only_best):
    model, max_lengths = MadeModel(7, 4, 5), (2, 6, 1, 4)
    tokens, scores = model.search(3, max_lengths, 6, only_best=only_best)
    for b in (1, 3):
        alone = model.search(3, max_lengths[b : b + 1], 6, sentences=[b], only_best=only_best)
        np.testing.assert_array_equal(tokens[b], alone[0][0])
        np.testing.assert_allclose(scores[b], alone[1][0], rtol=1e-5)


@pytest.mark.parametrize("end_bias", [slow(0.0), 6.0])
def test_stopping_early_changes_no_best(end_bias):
    model, positions = MadeModel(7, 20, 6, end_bias), {True: [], False: []}
    found = {}
    for only_best in (False, True):
        watch = lambda position, told=positions[only_best]: told.append(int(position))
        found[only_best] = model.search(4, (8,) * 20, 8, only_best=only_best, watch=watch)
        jax.effects_barrier()
    np.testing.assert_array_equal(found[True][0], found[False][0][:, :1])
    np.testing.assert_array_equal(found[True][1], found[False][1][:, :1])
    assert len(positions[True]) < len(positions[False]) or end_bias < 6


def test_an_end_at_the_first_place():
    """It is kept while others go on, and counts one token."""
    model = MadeModel(5, 2, end_bias=8.0)
    tokens, scores = model.search(4, (4, 4))
    np.testing.assert_array_equal(tokens[:, 0], [[END, PAD, PAD, PAD]] * 2)
    np.testing.assert_allclose(scores[:, 0], [model.log_probs(b, ())[END] for b in range(2)], rtol=1e-4)


def test_ties_go_to_the_lower_token():
    edit = lambda logits, _: jnp.zeros_like(logits)
    tokens, scores = MadeModel(5, 1).search(3, [2], 2, edit=edit)
    assert tokens.tolist() == [[[END, PAD], [3, END], [4, END]]]
    np.testing.assert_allclose(scores, [[-math.log(5)] * 3], rtol=1e-6)


def test_lengths_beyond_the_places_are_those_of_the_places():
    model = MadeModel(6, 3)
    for got, expected in zip(model.search(3, (9, 0, -3)), model.search(3, (4, 1, 1)), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_no_number_spoils_the_others():
    """A sentence that is all NaN has no hypothesis; a token that is NaN or +inf cannot be, as one that is -inf."""
    model = MadeModel(7, 3, 1)
    impossible = jnp.array([jnp.nan, jnp.inf, -jnp.inf])
    edit = lambda logits, _: logits.at[3:, 4:].set(impossible).at[:3].set(jnp.nan)
    tokens, scores = model.search(3, (4, 4, 4), edit=edit)
    assert (tokens[0] == PAD).all() and np.isneginf(scores[0]).all()
    model.sentence[:, 4:] = -1e9
    for b in (1, 2):
        assert_found(tokens[b], scores[b], loop(model, b, 3, 4))


def test_an_impossible_end_leaves_no_hypothesis():
    tokens, scores = MadeModel(5, 1).search(2, [3], edit=lambda logits, _: logits.at[:, END].set(-jnp.inf))
    assert (tokens == PAD).all() and np.isneginf(scores).all()


def test_logits_in_bfloat16():
    """Scores are float32: those of the rounded logits, which are near."""
    model = MadeModel(5, 2, 2)
    tokens, scores = model.search(16, (4, 4), dtype=jnp.bfloat16)
    assert scores.dtype == np.float32
    for b in range(2):
        expected = {y: score for score, y in exhaustive(model, b, 4)}
        got = {tuple(y[y != PAD].tolist()): score for y, score in zip(tokens[b], scores[b], strict=True)}
        assert all(got[y] == pytest.approx(score, abs=0.05) for y, score in expected.items())


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"beam_size": 0}, "beam_size=0"),
        ({"end_id": PAD}, "end_id=0"),
        ({"cache": jnp.zeros((3, 1))}, r"shape \(3, 1\), expected \[4 \.\.\.\]"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(fields, message):
    given = {"cache": (), "batch_size": 2, "beam_size": 2, "max_lengths": jnp.array([1, 1]), "max_steps": 1} | IDS
    with pytest.raises(ValueError, match=message):
        beam_search(lambda *_: None, **given | fields)
