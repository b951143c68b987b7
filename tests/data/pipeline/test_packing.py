"""Examples that share rows: all of them, once each, as they are, in rows that are full."""

import dataclasses

import numpy as np
import pytest

from posattn_jax.data.pipeline import packing
from posattn_jax.data.pipeline.batches import order_of, training_batches
from posattn_jax.data.pipeline.packing import Packed, pack
from posattn_jax.data.text import corpus, parallel, text_files
from posattn_jax.data.text.parallel import PackedText
from posattn_jax.data.tokenizers import tokenizer
from tests.support.made_text import LANGUAGES, write_parallel, write_text

LENGTH = 72


def of(*sides):
    """Sizes by the names of the sides."""
    return {f"side_{i}": np.asarray(side) for i, side in enumerate(sides)}


def lengths(seed, number, least=1, most=9):
    return np.random.default_rng(seed).integers(least, most + 1, number)


@pytest.mark.parametrize(
    "sides, length",
    [
        ((lengths(0, 200),), 20),
        ((lengths(1, 200), lengths(2, 200)), 17),
        ((lengths(3, 3),), 9),
        (([5],), 5),
        (([2, 1], [1, 2]), 3),
    ],
)
def test_every_example_is_in_one_row_that_holds_it(sides, length):
    rows = pack(of(*sides), length, seed=0)
    assert sorted(i for row in rows for i in row) == list(range(len(sides[0]))) and all(rows)
    for side in of(*sides).values():
        assert max(side[row].sum() for row in rows) <= length


@pytest.mark.parametrize(
    "sides, length, number",
    [
        (([6, 4, 7, 3, 5, 5, 10],), 10, 4),  # whole rows
        (([6, 4, 7, 3], [3, 7, 4, 6]), 10, 2),  # on both sides
        (([3] * 7,), 10, 3),  # one size
        (([6, 6, 6],), 10, 3),  # no two fit
    ],
)
def test_the_rows_are_as_few_as_can_be(sides, length, number):
    assert len(pack(of(*sides), length, seed=0)) == number


def test_rows_of_many_sizes_are_full():
    first = lengths(0, 5000, 5, 60)
    sizes = of(first, np.clip(first + lengths(1, 5000, 0, 8) - 4, 1, 64))
    assert packing.padding_share(sizes, len(pack(sizes, 64, seed=0)), 64) < 0.05


def test_the_seed_decides_who_shares_a_row():
    sizes = of(lengths(0, 200))
    first, again, other = (sorted(map(sorted, pack(sizes, 20, seed))) for seed in (0, 0, 1))
    assert first == again != other


def test_padding_share():
    assert packing.padding_share(of([3, 4], [5, 2]), num_rows=1, length=10) == pytest.approx(0.3)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Pairs of lines, of which the longest are cut."""
    files = text_files.find(write_text(tmp_path_factory.mktemp("text"), 60), "data.dir")
    subwords = tokenizer.of_text(text_files.lines(files), files, 50, tmp_path_factory.mktemp("cache"))
    source = corpus.of_text(files, subwords, 28, tmp_path_factory.mktemp("cache"))
    assert source.num_cut > 0
    return source


@pytest.fixture(scope="module")
def translations(tmp_path_factory):
    folder = write_parallel(tmp_path_factory.mktemp("parallel"))
    files = [folder / f"train.{language}" for language in LANGUAGES]
    subwords = tokenizer.train(text_files.lines(files), 60, "bpe", fold_case=False)
    sides = [parallel.of_file(folder, "train", language) for language in LANGUAGES]
    return parallel.of_text(*sides, (subwords, subwords), (24, LENGTH), tmp_path_factory.mktemp("cache"))


def packed_pairs(pairs, seed=0, length=LENGTH):
    source = dataclasses.replace(pairs, length=length)
    return Packed(source, pack(source.sizes, length, seed), length)


def packed_text(translations, seed=0):
    return PackedText(translations, pack(translations.sizes, LENGTH, seed), LENGTH)


def check_rows(packed, sides):
    """Each row of a packed source: its examples, as they are alone, one after the other.

    `sides` are the arrays of tokens with the name of their segment ids; returns how many rows there are of several.
    """
    numbers, several = [], 0
    batch = packed.batch(np.arange(len(packed)))
    for row, group in enumerate(packed.groups):
        several += len(group) > 1
        numbers += group
        for name, segments in sides.items():
            start = 0
            for number, i in enumerate(group, 1):
                size = packed.source.sizes[segments][i]
                alone = packed.source.batch(np.array([i]))[name][0]
                np.testing.assert_array_equal(batch[name][row, start : start + size], alone[:size])
                assert not alone[size:].any(), "no token is left out"
                assert (batch[segments][row, start : start + size] == number).all()
                start += size
            assert not batch[name][row, start:].any() and not batch[segments][row, start:].any()
    assert sorted(numbers) == list(range(len(packed.source)))
    assert {array.dtype for array in batch.values()} == {np.dtype(np.int32)}
    return several


@pytest.mark.parametrize("length", [28, LENGTH])
def test_rows_of_pairs_of_lines(pairs, length):
    packed = packed_pairs(pairs, length=length)
    several = check_rows(packed, {"tokens": "segment_ids", "segments": "segment_ids"})
    assert length == 28 or several == len(packed)
    assert packed.batch(np.array([0]))["ids"].tolist() == [packed.groups[0][0]]


def test_rows_of_translations(translations):
    packed = packed_text(translations)
    assert check_rows(packed, {"source": "source_segment_ids", "target": "target_segment_ids"}) > len(packed) / 2
    nothing = packed.batch(np.array([-1]))
    assert {name: array.shape for name, array in nothing.items()} == dict.fromkeys(nothing, (1, LENGTH))
    assert not any(array.any() for array in nothing.values())


def goes_on(packed, again, order):
    """That the batches of an epoch are the same from its middle, of a source that is packed again."""
    batches, half = training_batches(packed.batch, order.dataset()), order.steps_per_epoch // 2
    assert half > 0
    for _ in range(half):
        next(batches)
    resumed = training_batches(again.batch, order.dataset())
    resumed.set_state(batches.get_state())
    for _ in range(half, order.steps_per_epoch):
        expected, found = next(batches), next(resumed)
        assert found.keys() == expected.keys()
        for name, array in found.items():
            np.testing.assert_array_equal(array, expected[name])


@pytest.mark.parametrize("epoch", [0, 1])
def test_an_epoch_of_translations_has_each_once(translations, epoch):
    packed = packed_text(translations)
    order = packed.order(batch_size=8 * LENGTH, accumulation_steps=1, seed=3)
    steps = range(epoch * order.steps_per_epoch, (epoch + 1) * order.steps_per_epoch)
    rows = [row for step in steps for row in order.dataset()[step]]
    assert sorted(i for row in rows if row >= 0 for i in packed.groups[row]) == list(range(len(translations)))


def test_an_epoch_of_pairs_has_each_but_those_of_its_last_rows(pairs):
    packed = packed_pairs(pairs)
    order = order_of(packed, batch_size=3, accumulation_steps=1, seed=3)
    assert order.examples_per_step == pytest.approx(3 * len(pairs) / len(packed))
    rows = [row for step in range(order.steps_per_epoch) for row in order.dataset()[step]]
    seen = [i for row in rows for i in packed.groups[row]]
    left_out = set(range(len(packed))) - set(rows)
    assert len(left_out) == len(packed) % 3
    assert sorted(seen + [i for row in left_out for i in packed.groups[row]]) == list(range(len(pairs)))


def test_training_goes_on_with_the_same_rows(pairs, translations):
    goes_on(packed_pairs(pairs), packed_pairs(pairs), order_of(packed_pairs(pairs), 3, 1, seed=3))
    goes_on(packed_text(translations), packed_text(translations), packed_text(translations).order(8 * LENGTH, 1, 3))


def test_what_an_epoch_is_told(translations):
    packed = packed_text(translations)
    order, alone = (each.order(8 * LENGTH, 1, 0) for each in (packed, translations))
    shares = [each.padding_share(translations.source_lengths, translations.target_lengths) for each in (order, alone)]
    assert shares[0] < shares[1]
    told = packed.about(8 * LENGTH, 1, 0)
    assert told.startswith(f"120 pairs in {len(packed)} rows, {order.steps_per_epoch} updates an epoch")
    assert told.endswith(f"{shares[0]:.1%} padding ({shares[1]:.1%} without data.packed)")
