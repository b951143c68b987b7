import dataclasses

import numpy as np
import pytest

from posattn_jax.data import image_sets
from posattn_jax.data.images import GridImages, ImageSet, split
from posattn_jax.data.moving_mnist import DIRECTIONS, Scene
from posattn_jax.system.errors import InputError
from tests.support import made_data

DIGITS = ImageSet(made_data.strokes(0, 300)[0][..., None], made_data.strokes(0, 300)[1], 10)
SCENES = [("stills", Scene()), ("clips", Scene()), ("stills", Scene(shift="halves")), ("clips", Scene(96, "halves"))]


def made(kind, scene, part="train", digits=DIGITS):
    return getattr(scene, kind)(digits, part)


@pytest.mark.parametrize("kind, scene", SCENES, ids=str)
def test_a_digit_is_whole_and_where_it_should_be(kind, scene):
    images = made(kind, scene).images
    drawn = np.asarray(images)
    assert drawn.shape == images.shape and drawn.dtype == np.uint8
    canvases = drawn.reshape(300, -1, scene.canvas, scene.canvas)
    for canvas, digit, corners in zip(canvases, DIGITS.images, images.places.reshape(300, -1, 2), strict=True):
        for frame, (row, column) in zip(canvas, corners, strict=True):
            np.testing.assert_array_equal(frame[row : row + 28, column : column + 28], digit[..., 0])
            assert frame.sum() == digit.sum(dtype=np.int64)


@pytest.mark.parametrize("kind", ["stills", "clips"])
def test_the_seed_the_split_and_the_number_tell_the_place(kind):
    images = made(kind, Scene(seed=3)).images
    np.testing.assert_array_equal(np.asarray(images), np.asarray(made(kind, Scene(seed=3)).images))
    for other in (made(kind, Scene(seed=4)), made(kind, Scene(seed=3), "test")):
        assert (images.places != other.images.places).any(-1).mean() > 0.9
    few = made(kind, Scene(seed=3), digits=DIGITS.select(np.arange(7)))
    np.testing.assert_array_equal(np.asarray(few.images), np.asarray(images)[:7])


@pytest.mark.parametrize("kind, layout", [("stills", "2d"), ("clips", "3d")])
def test_batches_do_not_depend_on_the_order_of_ids(kind, layout):
    images = made(kind, Scene())
    whole = np.asarray(images.images)
    train, validation = split(images, seed=1)
    order = np.random.default_rng(1).permutation(300)
    ids = np.array([5, 2, 50, 2])
    for part, numbers in ((train, order[:240][ids]), (validation, order[240:][ids])):
        batch = GridImages(part, layout, pool=2).batch(ids)
        expected = GridImages(dataclasses.replace(images, images=whole), layout, pool=2).batch(numbers)
        np.testing.assert_array_equal(batch["inputs"], expected["inputs"])
        np.testing.assert_array_equal(batch["labels"], expected["labels"])


def test_stills_keep_their_labels_and_are_everywhere():
    stills = made("stills", Scene(canvas=32))
    np.testing.assert_array_equal(stills.labels, DIGITS.labels)
    assert {tuple(place) for place in stills.images.places} == {
        (row, column) for row in range(5) for column in range(5)
    }


@pytest.mark.parametrize("scene", [Scene(), Scene(seed=1, frames=2), Scene(42)], ids=str)
def test_clips_move_in_the_labelled_direction_in_every_frame(scene):
    clips = made("clips", scene)
    assert clips.num_classes == 8 and set(clips.labels) == set(range(8))
    drawn = np.asarray(clips.images, np.float64)[..., 0]
    assert drawn.shape == (300, scene.frames, scene.canvas, scene.canvas)
    mass, at = drawn.sum((2, 3)), np.arange(scene.canvas)
    centres = np.stack([drawn.sum(3) @ at / mass, drawn.sum(2) @ at / mass], axis=-1)
    velocities = np.diff(centres, axis=1)
    np.testing.assert_allclose(velocities, np.broadcast_to(velocities[:, :1], velocities.shape), atol=1e-9)
    speeds = np.abs(velocities).max(-1, keepdims=True)
    assert speeds.min() > 0.99
    np.testing.assert_allclose(velocities, speeds * DIRECTIONS[clips.labels][:, None], atol=1e-9)


def test_a_shift_keeps_training_and_test_apart():
    """No column has ink of both splits, though nearly all have some of one."""
    for kind, scene in SCENES[2:]:
        inked = []
        for part in ("train", "test"):
            drawn = np.asarray(made(kind, scene, part).images)
            inked.append(drawn.reshape(-1, scene.canvas, scene.canvas).any((0, 1)))
        half = scene.canvas // 2
        assert inked[0][:half].sum() > half - 12 and inked[1][half:].sum() > half - 12
        assert not inked[0][half:].any() and not inked[1][:half].any()


@pytest.mark.parametrize(
    "kind, scene, message",
    [
        ("stills", Scene(27), 'data.canvas=27: expected at least 28 with data.shift="none"$'),
        ("stills", Scene(55, "halves"), 'data.canvas=55: expected at least 56 with data.shift="halves"$'),
        ("clips", Scene(41), 'data.canvas=41: expected at least 42 with data.shift="none" and data.frames=8'),
        (
            "clips",
            Scene(64, "halves"),
            'data.canvas=64: expected at least 84 with data.shift="halves" and data.frames=8',
        ),
        ("clips", Scene(frames=1), "data.frames=1: expected at least 2"),
    ],
    ids=str,
)
def test_too_small(kind, scene, message):
    with pytest.raises(InputError, match=message):
        made(kind, scene)


@pytest.mark.parametrize("name, kind", [("moving_mnist", "stills"), ("moving_mnist_clips", "clips")])
def test_by_name(tmp_path, name, kind):
    made_data.write_mnist(tmp_path / "mnist")
    scene = Scene(canvas=48, seed=7)
    for part in ("train", "test"):
        loaded = image_sets.load(name, tmp_path, part, False, scene)
        expected = made(kind, scene, part, image_sets.load("mnist", tmp_path, part, False, scene))
        np.testing.assert_array_equal(np.asarray(loaded.images), np.asarray(expected.images))
        np.testing.assert_array_equal(loaded.labels, expected.labels)
