import numpy as np
import pytest

from posattn_jax.data.images import ImageSet, Points
from posattn_jax.data.pipeline.batches import Source
from posattn_jax.system.errors import InputError

INK = [[0, 9, 0, 5], [0, 0, 0, 0], [5, 0, 10, 5]]
SET = ImageSet(np.array([np.zeros((3, 4)), INK, np.full((3, 4), 10)], np.uint8)[..., None], np.array([7, 1, 4]), 10, 10)


def test_the_brightest_come_first_and_equals_row_major():
    points = Points(SET, num_points=7)
    assert isinstance(points, Source) and len(points) == 3
    batch = points.batch(np.array([1]))
    np.testing.assert_allclose(batch["inputs"][0, :, 0], [1, 0.9, 0.5, 0.5, 0.5, 0, 0])
    rows_and_columns = [(2, 2), (0, 1), (0, 3), (2, 0), (2, 3)]
    expected = [(row - 1, column * 2 / 3 - 1) for row, column in rows_and_columns]
    np.testing.assert_allclose(batch["positions"][0], [*expected, (0, 0), (0, 0)], atol=1e-6)
    assert batch["mask"].tolist() == [[True] * 5 + [False] * 2]
    assert {name: array.dtype for name, array in batch.items()} == {
        "positions": np.float32,
        "inputs": np.float32,
        "mask": np.bool_,
        "labels": np.int32,
    }


def test_only_the_brightest_are_kept():
    few, all_ = Points(SET, num_points=3).batch(np.array([1])), Points(SET, num_points=7).batch(np.array([1]))
    for name in ("positions", "inputs", "mask"):
        np.testing.assert_array_equal(few[name], all_[name][:, :3])


def test_an_empty_image_and_a_full_one():
    batch = Points(SET, num_points=12).batch(np.array([2, 0]))
    assert batch["labels"].tolist() == [4, 7]
    assert batch["mask"].all(1).tolist() == [True, False] and not batch["mask"][1].any()
    assert not batch["positions"][1].any() and not batch["inputs"][1].any()
    np.testing.assert_array_equal(batch["positions"][0], Points(SET, num_points=12).positions)


def test_points_of_a_clip_have_three_coordinates():
    clips = ImageSet(SET.images[None], np.array([3]), 10, 10)
    batch = Points(clips, num_points=13).batch(np.array([0]))
    np.testing.assert_allclose(batch["positions"][0, [0, -1]], [(0, 1, 1 / 3), (1, 1, 1)], atol=1e-6)


@pytest.mark.parametrize(
    "images, num_points, message",
    [
        (SET, 0, "num_points=0"),
        (SET, 13, "num_points=13: expected 1 to 12"),
        (
            ImageSet(np.zeros((2, 3, 4, 3), np.uint8), np.zeros(2, np.int64), 1),
            3,
            "expected images of 1 channel, not 3",
        ),
    ],
    ids=["none", "too many", "colour"],
)
def test_bad_points(images, num_points, message):
    with pytest.raises(InputError, match=message):
        Points(images, num_points)
