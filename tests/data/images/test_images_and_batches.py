import itertools
import pathlib

import numpy as np
import pytest

from posattn_jax.data.images import GridImages, ImageSet
from posattn_jax.data.images.image_sets import SETS
from posattn_jax.data.pipeline.batches import EpochOrder, Share, evaluation_batches, training_batches
from posattn_jax.data.pipeline.data_set import split
from posattn_jax.system.errors import InputError
from tests.support.slow import slow

SET = ImageSet(np.arange(13 * 4 * 6 * 2, dtype=np.uint16).reshape(13, 4, 6, 2) % 251, np.arange(13), 13, max_value=250)


def test_digits_are_real_and_whole():
    images = SETS["digits"].load(pathlib.Path(), "train")
    assert images.images.shape == (1797, 8, 8, 1)
    assert images.images.max() == 16
    assert np.bincount(images.labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_split_depends_on_the_seed_and_loses_nothing():
    (train, validation), (other, _) = split(SET, 1, 0.8), split(SET, 2, 0.8)
    assert (len(train), len(validation)) == (10, 3)
    assert sorted([*train.labels, *validation.labels]) == list(range(13))
    assert train.labels.tolist() != other.labels.tolist()
    np.testing.assert_array_equal(split(SET, 1, 0.8)[0].labels, train.labels)
    np.testing.assert_array_equal(train.images, SET.images[train.labels])


@pytest.mark.parametrize("layout, grid_shape", [("2d", (2, 3)), ("1d", (6,))])
def test_batch(layout, grid_shape):
    source = GridImages(SET, layout, pool=2)
    assert source.grid_shape == grid_shape
    batch = source.batch(np.array([5, 2]))
    assert batch["inputs"].shape == (2, 6, 2) and batch["inputs"].dtype == np.float32
    for row, column in itertools.product(range(2), range(3)):
        pixels = SET.images[2, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2] / 250
        np.testing.assert_allclose(batch["inputs"][1, row * 3 + column], (pixels.mean((0, 1)) - 0.5) / 0.5, atol=1e-6)
    assert batch["labels"].tolist() == [5, 2]


CLIPS = ImageSet(
    (np.arange(5 * 3 * 4 * 6 * 2).reshape(5, 3, 4, 6, 2) % 251).astype(np.uint8), np.arange(5), 5, max_value=250
)


@pytest.mark.parametrize("layout, grid_shape", [("3d", (3, 2, 3)), ("1d", (18,))])
def test_batch_of_clips(layout, grid_shape):
    """A clip is its frames, one after the other; pooling leaves their number alone."""
    source = GridImages(CLIPS, layout, pool=2)
    assert source.grid_shape == grid_shape and source.num_channels == 2
    batch = source.batch(np.array([4, 0]))
    assert batch["inputs"].shape == (2, 18, 2) and batch["labels"].tolist() == [4, 0]
    for frame in range(3):
        of_frame = GridImages(ImageSet(CLIPS.images[:, frame], CLIPS.labels, 5, 250), pool=2).batch(np.array([4, 0]))
        np.testing.assert_array_equal(batch["inputs"][:, frame * 6 : (frame + 1) * 6], of_frame["inputs"])


def test_layout_fits_the_images(unchecked):
    with pytest.raises(InputError, match=r'layout="2d": .*"3d".*\(3, 4, 6\)'):
        GridImages(CLIPS, "2d")


@pytest.mark.parametrize("fields, message", [({"layout": "3d"}, 'layout="3d"'), ({"pool": 3}, r"pool=3.*\(4, 6\)")])
def test_bad_grid(unchecked, fields, message):
    with pytest.raises(InputError, match=message):
        GridImages(SET, **fields)


def ids(order, batches):
    return [np.asarray(order[i]).tolist() for i in range(batches)]


def test_every_epoch_is_a_new_permutation():
    order = EpochOrder(13, 4, seed=3).dataset()
    epochs = [list(itertools.chain(*ids(order, 12)[start : start + 3])) for start in (0, 3, 6)]
    for epoch in epochs:
        assert len(set(epoch)) == 12
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert ids(order, 12) == ids(EpochOrder(13, 4, seed=3).dataset(), 12)
    assert ids(order, 3) != ids(EpochOrder(13, 4, seed=4).dataset(), 3)


@pytest.mark.parametrize("shares", [slow(((0,), (1,))), ((0, 2), (1, 3)), ((0,), (1,), (2, 3))])
@pytest.mark.parametrize("num_micro_batches", [slow(1), 2])
def test_processes_share_each_batch_as_its_shards_lie(shares, num_micro_batches):
    """Put together in the order of the shards, each micro-batch is what one process alone would have read."""
    order = EpochOrder(13, 8, seed=3).dataset()
    num_shards = sum(map(len, shares))
    readers = [
        training_batches(GridImages(SET).batch, order, num_micro_batches, Share(shards, num_shards))
        for shards in shares
    ]
    for whole, *parts in zip(range(4), *(itertools.islice(reader, 4) for reader in readers), strict=True):
        joined = np.zeros((num_micro_batches, num_shards, 8 // num_micro_batches // num_shards), int)
        for shards, part in zip(shares, parts, strict=True):
            joined[:, list(shards)] = part["labels"].reshape(num_micro_batches, len(shards), -1)
        alone = GridImages(SET).batch(np.asarray(order[whole]))["labels"]
        np.testing.assert_array_equal(joined.ravel(), alone)


@pytest.mark.parametrize("batch_size", [0, 14])
def test_batch_larger_than_the_data(batch_size):
    with pytest.raises(InputError, match=f"accumulation_steps is {batch_size}: .* 13"):
        EpochOrder(13, batch_size, seed=0).dataset()


@pytest.mark.parametrize("ahead", [True, False])
def test_position_is_saved_and_restored(ahead):
    """Also by a process that reads in the other way."""
    source = GridImages(SET)
    batches = training_batches(source.batch, EpochOrder(13, 4, seed=3).dataset(), reads_ahead=ahead)
    for _ in range(4):
        next(batches)
    position, expected = batches.get_state(), [next(batches)["labels"].tolist() for _ in range(4)]
    resumed = training_batches(source.batch, EpochOrder(13, 4, seed=3).dataset(), reads_ahead=not ahead)
    resumed.set_state(position)
    assert [next(resumed)["labels"].tolist() for _ in range(4)] == expected
    assert expected == ids(EpochOrder(13, 4, seed=3).dataset(), 8)[4:]


@pytest.mark.parametrize("count", [1, 2])
def test_evaluation_meets_every_example_once(count):
    seen = []
    for index in range(count):
        for batch in evaluation_batches(GridImages(SET), 4, Share((index,), count)):
            assert len(batch["labels"]) == 4 // count
            seen += batch["labels"][batch["weights"] > 0].tolist()
    assert sorted(seen) == list(range(13))
