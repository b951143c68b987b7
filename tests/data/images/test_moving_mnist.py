import dataclasses

import numpy as np
import pytest

from posattn_jax.data.images import GridImages, ImageSet
from posattn_jax.data.images.image_sets import Images
from posattn_jax.data.images.moving_mnist import DIRECTIONS, Clips, Stills
from posattn_jax.data.pipeline.data_set import split
from posattn_jax.system.errors import InputError
from tests.support import made_data

DIGITS = ImageSet(made_data.strokes(0, 300)[0][..., None], made_data.strokes(0, 300)[1], 10)
SCENES = [Stills(), Clips(), Stills(shift="halves"), Clips(96, "halves")]


@pytest.mark.parametrize("scene", SCENES, ids=str)
def test_a_digit_is_whole_and_where_it_should_be(scene):
    images = scene.of(DIGITS, "train").images
    drawn = np.asarray(images)
    assert drawn.shape == images.shape and drawn.dtype == np.uint8
    canvases = drawn.reshape(300, -1, scene.canvas, scene.canvas)
    for canvas, digit, corners in zip(canvases, DIGITS.images, images.places.reshape(300, -1, 2), strict=True):
        for frame, (row, column) in zip(canvas, corners, strict=True):
            np.testing.assert_array_equal(frame[row : row + 28, column : column + 28], digit[..., 0])
            assert frame.sum() == digit.sum(dtype=np.int64)


@pytest.mark.parametrize("scene", [Stills, Clips])
def test_the_seed_the_split_and_the_number_tell_the_place(scene):
    images = scene(seed=3).of(DIGITS, "train").images
    np.testing.assert_array_equal(np.asarray(images), np.asarray(scene(seed=3).of(DIGITS, "train").images))
    for other in (scene(seed=4).of(DIGITS, "train"), scene(seed=3).of(DIGITS, "test")):
        assert (images.places != other.images.places).any(-1).mean() > 0.9
    few = scene(seed=3).of(DIGITS.select(np.arange(7)), "train")
    np.testing.assert_array_equal(np.asarray(few.images), np.asarray(images)[:7])


@pytest.mark.parametrize("scene, layout", [(Stills(), "2d"), (Clips(), "3d")])
def test_batches_do_not_depend_on_the_order_of_ids(scene, layout):
    images = scene.of(DIGITS, "train")
    whole = np.asarray(images.images)
    train, validation = split(images, 1, 0.8)
    order = np.random.default_rng(1).permutation(300)
    ids = np.array([5, 2, 50, 2])
    for part, numbers in ((train, order[:240][ids]), (validation, order[240:][ids])):
        batch = GridImages(part, layout, pool=2).batch(ids)
        expected = GridImages(dataclasses.replace(images, images=whole), layout, pool=2).batch(numbers)
        np.testing.assert_array_equal(batch["inputs"], expected["inputs"])
        np.testing.assert_array_equal(batch["labels"], expected["labels"])


def test_stills_keep_their_labels_and_are_everywhere():
    stills = Stills(canvas=32).of(DIGITS, "train")
    np.testing.assert_array_equal(stills.labels, DIGITS.labels)
    assert {tuple(place) for place in stills.images.places} == {
        (row, column) for row in range(5) for column in range(5)
    }


@pytest.mark.parametrize("scene", [Clips(), Clips(seed=1, frames=2), Clips(42)], ids=str)
def test_clips_move_in_the_labelled_direction_in_every_frame(scene):
    clips = scene.of(DIGITS, "train")
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
    for scene in SCENES[2:]:
        inked = []
        for part in ("train", "test"):
            drawn = np.asarray(scene.of(DIGITS, part).images)
            inked.append(drawn.reshape(-1, scene.canvas, scene.canvas).any((0, 1)))
        half = scene.canvas // 2
        assert inked[0][:half].sum() > half - 12 and inked[1][half:].sum() > half - 12
        assert not inked[0][half:].any() and not inked[1][:half].any()


@pytest.mark.parametrize(
    "scene, message",
    [
        (Stills(27), "data.scene.canvas=27: .*28"),
        (Stills(55, "halves"), "data.scene.canvas=55: .*56"),
        (Clips(41), "data.scene.canvas=41: .*42"),
        (Clips(64, "halves"), "data.scene.canvas=64: .*84"),
    ],
    ids=str,
)
def test_too_small(scene, message):
    with pytest.raises(InputError, match=message):
        scene.of(DIGITS, "train")


def test_a_clip_has_two_frames():
    with pytest.raises(ValueError, match="frames=1: expected at least 2"):
        Clips(frames=1)


@pytest.mark.parametrize("scene", [Stills(canvas=48, seed=7), Clips(canvas=60, seed=7, frames=3)])
def test_a_scene_of_a_set(tmp_path, scene):
    """What is known without reading it is what is read."""
    made_data.write_mnist(tmp_path / "mnist")
    moving, fixed = (Images("mnist", str(tmp_path), scene=each) for each in (scene, None))
    for part in ("train", "test"):
        loaded, expected = moving.read(part), scene.of(fixed.read(part), part)
        np.testing.assert_array_equal(np.asarray(loaded.images), np.asarray(expected.images))
        np.testing.assert_array_equal(loaded.labels, expected.labels)
        assert moving.shape == loaded.images.shape[1:] and len(moving.classes) == loaded.num_classes
