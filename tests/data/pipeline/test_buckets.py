"""The order of examples of several lengths."""

import numpy as np
import pytest

from posattn_jax.data.pipeline.batches import training_batches
from posattn_jax.data.pipeline.buckets import BucketOrder, padded_length
from posattn_jax.system.errors import InputError

BUCKETS, TOKENS = (4, 6, 12), 48
SOURCE, TARGET = np.random.default_rng(0).integers(2, 13, (2, 150)) // [[1], [2]] + [[0], [1]]
LENGTHS = np.maximum(SOURCE, TARGET)


def order(tokens=TOKENS, steps=1, shards=1, seed=3, lengths=LENGTHS, unit="target_tokens", buckets=BUCKETS):
    target_lengths = TARGET if lengths is LENGTHS else lengths
    return BucketOrder(lengths, target_lengths, buckets, tokens, steps, shards, seed, unit)


def updates(of, start, number):
    dataset = of.dataset()
    return [dataset[i].tolist() for i in range(start, start + number)]


class Ids:
    """A source that tells which examples it was asked for."""

    knows = {}  # noqa: RUF012

    def __len__(self):
        return len(LENGTHS)

    def batch(self, ids):
        return {"ids": ids}


@pytest.mark.parametrize("steps, shards", [(1, 1), (2, 1), (1, 4), (3, 2)])
@pytest.mark.parametrize("unit", ["target_tokens", "places"])
def test_every_epoch_has_every_example_once(steps, shards, unit):
    each = order(steps=steps, shards=shards, unit=unit)
    for epoch in range(3):
        found = updates(each, epoch * each.steps_per_epoch, each.steps_per_epoch)
        assert sorted(i for ids in found for i in ids if i >= 0) == list(range(len(LENGTHS)))
        partly = [-min(ids) for ids in found if min(ids) < 0]
        assert len(partly) == len(set(partly)) <= len(BUCKETS), "only a bucket's last update has rows without example"


@pytest.mark.parametrize("steps, shards", [(1, 1), (2, 1), (1, 4), (3, 2)])
def test_an_update_is_of_one_bucket_and_fills_its_micro_batches(steps, shards):
    each = order(steps=steps, shards=shards, unit="places")
    for ids in updates(each, 0, each.steps_per_epoch):
        lengths = {padded_length(int(LENGTHS[i]), BUCKETS) if i >= 0 else BUCKETS[-1 - i] for i in ids}
        assert len(lengths) == 1, "rows without example tell the length that the others have"
        length = lengths.pop()
        rows = len(ids) // steps
        assert len(ids) == steps * shards * (TOKENS // (length * shards)) and rows % shards == 0
        assert rows * length <= TOKENS


@pytest.mark.parametrize("steps, shards", [(1, 1), (2, 1), (1, 4), (3, 2)])
def test_an_update_is_as_many_rows_as_have_its_target_tokens(steps, shards):
    """Of the mean of its bucket, padding and the source not counted."""
    each = order(steps=steps, shards=shards)
    tokens = {length: [] for length in BUCKETS}
    for source, target in zip(SOURCE.tolist(), TARGET.tolist(), strict=True):
        tokens[padded_length(max(source, target), BUCKETS)].append(target)
    rows = {
        length: steps * shards * round(TOKENS / (shards * sum(own) / len(own))) for length, own in tokens.items() if own
    }
    found = {}
    for ids in updates(each, 0, each.steps_per_epoch):
        found.setdefault(max(padded_length(int(LENGTHS[i]), BUCKETS) for i in ids if i >= 0), set()).add(len(ids))
    assert found == {length: {number} for length, number in rows.items()}


@pytest.mark.parametrize("steps, tokens, expected", [(8, 3400, 27_200), (4, 6800, 27_200), (8, 2048, 16_384)])
def test_target_tokens_of_the_papers_updates(steps, tokens, expected):
    """Schmidt 2023, section 5.3: about 27,000 and 16,000; counted in places, as before, they are a quarter fewer."""
    rng, buckets = np.random.default_rng(0), (16, 24, 32, 48, 64, 128)
    source = np.clip(rng.gamma(3, 9, 60_000), 2, 128).astype(int)
    target = np.clip(source * rng.normal(1, 0.15, len(source)), 2, 128).astype(int)
    means = {}
    for unit in ("target_tokens", "places"):
        each = BucketOrder(np.maximum(source, target), target, buckets, tokens, steps, 8, 0, unit)
        epoch = [np.asarray(ids) for ids in updates(each, 0, each.steps_per_epoch)]
        full = np.array([target[ids].sum() for ids in epoch if min(ids) >= 0])
        assert len(full) > 20
        if unit == "target_tokens":
            assert np.abs(full / expected - 1).max() < 0.2, "rows are multiples of steps times 8"
        means[unit] = full.mean()
    assert means["target_tokens"] == pytest.approx(expected, rel=0.02)
    assert means["places"] < 0.8 * expected


def test_the_seed_and_the_epoch_decide():
    each, steps = order(), order().steps_per_epoch
    first, second = updates(each, 0, steps), updates(each, steps, steps)
    assert updates(order(), 0, steps) == first and updates(order(), steps, steps) == second
    assert updates(order(seed=4), 0, steps) != first != second
    assert sorted(map(sorted, first)) != sorted(map(sorted, second)), "other examples meet in an update"
    assert list(map(len, first)) != list(map(len, second)), "the lengths take turns otherwise"
    assert updates(each, 0, steps) == first, "an earlier epoch again"
    assert updates(each, 10**9, 1) == updates(order(), 10**9, 1), "any update at once"


def test_position_is_saved_and_restored():
    """In the middle of the first epoch, and at its end; what follows goes on into the next."""
    steps = order().steps_per_epoch
    for done in (5, steps - 1, steps, steps + 3):
        batches = training_batches(Ids().batch, order().dataset())
        for _ in range(done):
            next(batches)
        position = batches.get_state()
        expected = [next(batches)["ids"].tolist() for _ in range(steps)]
        resumed = training_batches(Ids().batch, order().dataset())
        resumed.set_state(position)
        assert [next(resumed)["ids"].tolist() for _ in range(steps)] == expected == updates(order(), done, steps)


@pytest.mark.parametrize("steps, shards", [(1, 1), (2, 4)])
def test_padding_share(steps, shards):
    each, places, tokens = order(steps=steps, shards=shards), 0, 0
    for ids in updates(each, 0, each.steps_per_epoch):
        length = max(padded_length(int(LENGTHS[i]), BUCKETS) for i in ids if i >= 0)
        for i in ids:
            places += 2 * length
            tokens += SOURCE[i] + TARGET[i] if i >= 0 else 0
    assert each.padding_share(SOURCE, TARGET) == pytest.approx(1 - tokens / places)


def test_no_padding_where_lengths_are_buckets():
    lengths = np.repeat([4, 12], 12)
    assert order(lengths=lengths).padding_share(lengths, lengths) == 0


@pytest.mark.parametrize("length, padded", [(1, 4), (4, 4), (5, 6), (12, 12), (13, 24), (24, 24), (25, 36)])
def test_padded_length(length, padded):
    assert padded_length(length, BUCKETS) == padded


def test_what_cannot_be_ordered(unchecked):
    with pytest.raises(InputError, match="^train.batch_size=11: .*12"):
        order(tokens=11)
    with pytest.raises(InputError, match=r"^data.buckets=\(4, 6, 12\): .*fits"):
        order(lengths=LENGTHS[:0])
    with pytest.raises(ValueError, match="length 13 is in none of the buckets"):
        order(lengths=np.array([13]))
