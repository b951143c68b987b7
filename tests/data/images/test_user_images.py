"""Folders of image files, and arrays, of a user's own."""

import re

import numpy as np
import pytest
from PIL import Image

from posattn_jax.data.images import ImageSet
from posattn_jax.data.images.arrays import Arrays, read_rows
from posattn_jax.data.images.image_folder import ImageFolder
from posattn_jax.data.pipeline.data_set import Reading
from posattn_jax.system.errors import InputError
from tests.support import made_own


def one_line(message):
    """What an error is to say, in one line."""
    return f"(?m)\\A{message}\\Z"


def image_folder(folder, **fields):
    return ImageFolder(str(folder), 8, 8, **fields)


def write_parts(folder):
    """Two images of each class to train on, one to judge by, and one to test."""
    for number, part in enumerate(("train", "train", "val", "test")):
        for label, name in enumerate(made_own.CLASSES):
            path = folder / part / name / "deep" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(made_own.stripes(label) + np.uint8(number)).save(path)
    return folder


def test_a_folder_is_divided_by_the_seed(tmp_path, capsys):
    folder = made_own.write_images(tmp_path, 20)
    data = image_folder(folder, malformed="skip")
    sources = data.load(Reading(1))
    assert {part: len(source) for part, source in sources.items()} == {"train": 19, "validation": 5}
    assert sources["train"].names == made_own.CLASSES
    whole = np.concatenate([source.images.images for source in sources.values()])
    assert whole.shape == (24, 8, 8, 3) and whole.dtype == np.uint8
    labels = np.concatenate([source.images.labels for source in sources.values()])
    across = (np.diff(whole.astype(int), axis=1) ** 2).mean((1, 2, 3)) > (np.diff(whole.astype(int), axis=2) ** 2).mean(
        (1, 2, 3)
    )
    np.testing.assert_array_equal(labels, np.where(across, 0, 1))
    again, other = data.load(Reading(1)), data.load(Reading(2))
    assert np.array_equal(again["train"].images.labels, sources["train"].images.labels)
    assert not np.array_equal(other["validation"].images.images, sources["validation"].images.images)
    assert "left out: 1, next to 24" in capsys.readouterr().out
    assert set(data.files()) >= {"data.dir/across/000.png", "data.dir/along/wide.jpg"} and len(data.files()) == 25


def test_parts_have_folders(tmp_path, capsys):
    folder = write_parts(tmp_path)
    assert set(image_folder(folder).load(Reading(1))) == {"train", "validation"}
    sources = image_folder(folder, channels=1).load(Reading(1, evaluates=True))
    assert {part: len(source) for part, source in sources.items()} == {"train": 4, "validation": 2, "test": 2}
    np.testing.assert_array_equal(sources["test"].images.images[1, :, :, 0], made_own.stripes(1)[..., 0] + 3)
    assert sources["test"].images.labels.tolist() == [0, 1]
    assert "and no others" not in capsys.readouterr().out
    limited = image_folder(folder, validation_limit=1).load(Reading(1))
    assert len(limited["validation"]) == 1
    assert "validation: the first 1 of 2 are of 1 of 2 classes, and no others are judged by" in capsys.readouterr().out


def test_a_run_keeps_its_classes(tmp_path):
    """It goes on, is evaluated and predicts with them, whatever the folders are then."""
    folder, workdir = write_parts(tmp_path / "images"), tmp_path / "run"
    data = image_folder(folder, pool=2)
    data.load(Reading(1))["train"].save(workdir)
    assert data.classes_of(workdir) == made_own.CLASSES
    assert data.empty(workdir).knows == {"input_shape": (4, 4), "num_channels": 3, "num_classes": 2}
    (folder / "train" / "across").rename(folder / "train" / "above")
    with pytest.raises(InputError, match='0.png: label "above": .*across'):
        data.load(Reading(1, workdir=workdir))
    with pytest.raises(InputError, match="no own_data.json"):
        data.empty(tmp_path)


def test_wrong_folders(tmp_path, capsys):
    with pytest.raises(InputError, match=one_line(f"data.dir={tmp_path}/none: no such folder .*")):
        image_folder(tmp_path / "none").load(Reading(1))
    with pytest.raises(InputError, match=one_line(f"{tmp_path}: classes: 0: expected at least 2")):
        image_folder(tmp_path).load(Reading(1))
    folder = write_parts(tmp_path)
    (folder / "dev").mkdir()
    with pytest.raises(InputError, match=one_line(f"data.dir={folder}: has val and dev: expected one of them")):
        image_folder(folder).load(Reading(1))
    (folder / "dev").rmdir()
    (folder / "train" / "across" / "deep" / "0.png").rename(folder / "train" / "alone.png")
    with pytest.raises(
        InputError, match=one_line(rf"{folder}/train/alone.png: is in no folder of {folder}/train \(.*")
    ):
        image_folder(folder).load(Reading(1))
    assert len(image_folder(folder, malformed="skip").load(Reading(1))["train"]) == 3
    (folder / "train" / "alone.png").unlink()
    (folder / "Test").mkdir()
    message = rf"{folder}/Test: is no part: expected dev, test, .* \(malformed folders: 1, which data.malformed=skip .*"
    with pytest.raises(InputError, match=one_line(message)):
        image_folder(folder).load(Reading(1))
    capsys.readouterr()
    assert len(image_folder(folder, malformed="skip").load(Reading(1))["train"]) == 3
    assert capsys.readouterr().out.startswith(f"data.dir: left out: {folder}/Test: ")
    (folder / "Test").rmdir()
    (folder / "train").rename(folder / "training")
    (folder / "training").rename(folder.parent / f"{folder.name}_training")
    with pytest.raises(InputError, match=one_line(rf"data.dir={folder}: nothing to train on .*")):
        image_folder(folder).load(Reading(1))
    (folder / "others").mkdir()
    (folder / "val").rename(folder / "Val")
    with pytest.raises(InputError, match=one_line(rf"data.dir={folder}: nothing to train on .*")):
        image_folder(folder).load(Reading(1))
    (folder / "others").rmdir()
    (folder / "Val").rename(folder / "val")
    (folder.parent / f"{folder.name}_training").rename(folder / "train")
    for path in (folder / "val").rglob("*.png"):
        path.write_bytes(b"")
    with pytest.raises(InputError, match="malformed images: 2, .*data.malformed=skip"):
        image_folder(folder).load(Reading(1))
    with pytest.raises(InputError, match="the validation part has no images"):
        image_folder(folder, malformed="skip").load(Reading(1))


@pytest.mark.parametrize("field", ["mean", "deviation"])
@pytest.mark.parametrize("given", [(), (0.5, 0.5), (0.5, 0.5, 0.5, 0.5), (float("nan"),)])
def test_pixels_need_a_mean_and_a_deviation_of_each_channel(field, given):
    with pytest.raises(
        ValueError, match=re.escape(f"{field}={given}: expected a number for each of 3 channels, or one")
    ):
        ImageFolder(**{field: given})
    with pytest.raises(ValueError, match=re.escape("deviation=(0.0,): expected more than 0")):
        ImageFolder(deviation=(0.0,))


def saved(folder, name="a.npz", **arrays):
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / name, **arrays)
    return folder / name


def numbers(*shape):
    return np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)


LABELS = np.arange(10) % 2


@pytest.mark.parametrize(
    "shape, num_dims, sides, channels",
    [
        ((7,), 0, (7,), 1),
        ((7, 3), 0, (7,), 3),
        ((7, 5), 0, (7, 5), 1),
        ((7, 5), 1, (7,), 5),
        ((7, 3), 2, (7, 3), 1),
        ((7, 5, 1), 0, (7, 5), 1),
        ((2, 7, 5), 0, (2, 7, 5), 1),
        ((2, 7, 5), 2, (2, 7), 5),
        ((2, 7, 5, 6), 0, (2, 7, 5), 6),
    ],
)
def test_grids(tmp_path, shape, num_dims, sides, channels):
    values = numbers(10, *shape)
    data = Arrays(str(saved(tmp_path, images=values, labels=LABELS)), num_dims)
    sources = data.load(Reading(1))
    assert sources["train"].knows == {"input_shape": sides, "num_channels": channels, "num_classes": 2}
    rows = np.random.default_rng(1).permutation(10)[8:]
    batch = sources["validation"].batch(np.arange(2))
    np.testing.assert_allclose(batch["inputs"], (values[rows] / 127.5 - 1).reshape(2, -1, channels), atol=1e-6)
    np.testing.assert_array_equal(batch["labels"], LABELS[rows])


def test_floats_are_given_as_they_are(tmp_path):
    values = np.random.default_rng(0).normal(0, 100, (10, 6, 4, 2))
    data = Arrays(str(saved(tmp_path, inputs=values, labels=LABELS)), pool=2, layout="1d")
    source = data.load(Reading(1))["validation"]
    rows = np.random.default_rng(1).permutation(10)[8:]
    expected = values[rows].reshape(2, 3, 2, 2, 2, 2).mean((2, 4)).reshape(2, 6, 2)
    batch = source.batch(np.arange(2))
    np.testing.assert_allclose(batch["inputs"], expected, rtol=1e-5)
    assert batch["inputs"].dtype == np.float32 and source.grid_shape == (6,)
    series = saved(tmp_path, "series.npz", inputs=np.arange(80.0).reshape(10, 8), labels=LABELS)
    pooled = Arrays(str(series), pool=4).load(Reading(1))["validation"].batch(np.arange(1))["inputs"]
    np.testing.assert_allclose(pooled[0, :, 0], 8 * rows[0] + np.array([1.5, 5.5]))


@pytest.mark.parametrize(
    "labels, names, classes",
    [
        (np.arange(10) % 3 * 5, None, ("0", "5", "10")),
        (np.array(["b", "a"] * 5), None, ("a", "b")),
        (LABELS, ["ill", "a cold", "well"], ("ill", "a cold", "well")),
    ],
)
def test_labels_have_names(tmp_path, labels, names, classes):
    more = {} if names is None else {"names": np.array(names)}
    data = Arrays(str(saved(tmp_path, images=numbers(10, 5, 6), labels=labels, **more)))
    source = data.load(Reading(1))["train"]
    source.save(tmp_path / "run")
    assert data.classes_of(tmp_path / "run") == classes
    rows = np.random.default_rng(1).permutation(10)[:8]
    told = [classes[number] for number in source.images.labels]
    assert told == [str(label) if names is None else names[label] for label in labels[rows]]


GOOD = {"images": numbers(10, 5, 6), "labels": LABELS}
WRONG = [
    ({"images": None}, 'has "labels": expected one of "images" and "inputs"'),
    ({"inputs": numbers(10, 5)}, 'has "images", "labels", "inputs": expected one of "images" and "inputs"'),
    ({"labels": None}, 'has "images": expected "labels"'),
    ({"labels": LABELS[1:]}, '10 rows, and 9 "labels"'),
    ({"labels": LABELS / 2}, r'"labels" is float64 \[10\]: expected integers or texts \[n\]'),
    ({"labels": LABELS * 0}, r'classes: 1 \("0"\): expected at least 2'),
    ({"names": np.array(["a"])}, '"labels" is 0 to 1, and there are 1 "names"'),
    ({"names": np.array(["a", "b", "a"])}, '"names" has a twice: expected each once'),
    ({"names": np.array([b"a", b"b"])}, r'"names" is \|S1 \[2\]: expected texts or integers \[k\]'),
    ({"names": np.array("ab")}, r'"names" is <U2 \[\]: expected texts or integers \[k\]'),
    ({"names": np.array([["a"], ["b"]])}, r'"names" is <U1 \[2, 1\]: expected texts or integers \[k\]'),
    (
        {"labels": np.array([*"abab", "", *"babab"])},
        r'row 4: "labels" is empty: expected a text \(malformed rows: 1, .*',
    ),
    ({"images": numbers(10, 5, 0)}, r'"images" is \[10, 5, 0\]: expected \[n \*S\] or \[n \*S c\]'),
    ({"images": numbers(10, 5, 6) > 3}, '"images" is bool: expected uint8 or floats'),
    ({"images": numbers(10)}, r'"images" is \[10\]: expected \[n \*S\] or \[n \*S c\]'),
    ({"images": numbers(10, 2, 2, 2, 2, 2)}, r"arrays of \[2, 2, 2, 2, 2\]: expected a grid of 1 to 3 dimensions, .*"),
    ({"images": np.array([None] * 10)}, r"cannot be read as .npz \(.*pickle.*\)"),
]


@pytest.mark.parametrize("changed, message", WRONG, ids=[message for _, message in WRONG])
def test_wrong_arrays(tmp_path, changed, message):
    arrays = {name: array for name, array in (GOOD | changed).items() if array is not None}
    path = saved(tmp_path, **arrays)
    with pytest.raises(InputError, match=one_line(f"{path}: {message}")):
        Arrays(str(path)).load(Reading(1))


def test_wrong_files(tmp_path):
    with pytest.raises(InputError, match="nothing to train on .*train.npz"):
        Arrays(str(tmp_path)).load(Reading(1))
    path = saved(tmp_path, **GOOD)
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(InputError, match=one_line(rf"{path}: cannot be read as .npz \(.*")):
        Arrays(str(path)).load(Reading(1))
    np.save(tmp_path / "one.npy", LABELS)
    with pytest.raises(InputError, match="one.npy: .*npz"):
        Arrays(str(tmp_path / "one.npy")).load(Reading(1))
    with pytest.raises(InputError, match=r"\[5, 6\]: .*data.num_dims=3"):
        Arrays(str(saved(tmp_path, **GOOD)), num_dims=3).load(Reading(1))
    saved(tmp_path, "train.npz", **GOOD)
    saved(tmp_path, "test.npz", **GOOD | {"images": numbers(10, 6, 5)})
    with pytest.raises(InputError, match=r"test.npz: .*\[6, 5\]: .*\[5, 6, 1\]"):
        Arrays(str(tmp_path)).load(Reading(1, evaluates=True))
    saved(tmp_path, "test.npz", **GOOD | {"labels": LABELS + 1})
    with pytest.raises(InputError, match='test.npz: row 1: label "2": .*0, 1'):
        Arrays(str(tmp_path)).load(Reading(1, evaluates=True))
    skipped = Arrays(str(tmp_path), malformed="skip").load(Reading(1, evaluates=True))
    assert len(skipped["test"]) == 5


def test_rows_that_are_asked_about(tmp_path):
    values = np.ones((3, 5, 6), np.float32)
    values[1, 0, 0] = np.inf
    path = saved(tmp_path, inputs=values)
    like = ImageSet(np.zeros((0, 5, 6, 1), np.float32), np.zeros(0), 2, None)
    first, second, third = read_rows(path, like)
    assert str(second) == f"{path}: row 1: has values that are not finite"
    np.testing.assert_array_equal([first, third], np.ones((2, 5, 6, 1)))
    expected = re.escape("arrays of floats [5, 6]: expected uint8 [5, 6, 3], as the run was trained on")
    with pytest.raises(InputError, match=expected):
        list(read_rows(path, ImageSet(np.zeros((0, 5, 6, 3), np.uint8), np.zeros(0), 2)))
