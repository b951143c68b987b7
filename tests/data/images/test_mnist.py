import dataclasses

import numpy as np
import pytest

from configs import fashion_mnist
from posattn_jax.config import experiment
from posattn_jax.data.images.mnist import SETS
from posattn_jax.system.errors import InputError
from tests.support import made_data

MNIST = SETS["mnist"]
IMAGES, LABELS = "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"


@pytest.fixture
def folder(tmp_path):
    return made_data.write_mnist(tmp_path)


@pytest.mark.parametrize("place", ["", "mnist", "MNIST/raw"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_reads_both_splits(tmp_path, place, suffix):
    made_data.write_mnist(tmp_path / place, suffix=suffix)
    for seed, (split, num_images) in enumerate({"train": 100, "test": 50}.items()):
        loaded, (images, labels) = MNIST.load(tmp_path, split), made_data.strokes(seed, num_images)
        assert loaded.images.dtype == np.uint8 and loaded.num_classes == 10
        np.testing.assert_array_equal(loaded.images, images[..., None])
        np.testing.assert_array_equal(loaded.labels, labels)


@pytest.mark.parametrize("place", [".", "fashion_mnist", "FashionMNIST/raw"])
def test_fashion_mnist_is_read_as_mnist_is(tmp_path, place):
    made_data.write_mnist(tmp_path / place)
    config = fashion_mnist.get_config("tiny")
    config.data.dir = str(tmp_path)
    data, sources = experiment.data_set(config), experiment.load_sources(config)
    assert len(data.classes) == 10 and data.classes[9] == "ankle boot" and len(data.files()) == 4
    assert data.shape == sources["train"].images.images.shape[1:] == (28, 28, 1)
    np.testing.assert_array_equal(sources["train"].images.images, MNIST.load(tmp_path / place, "train").images)
    (tmp_path / place / IMAGES).unlink()
    with pytest.raises(InputError, match=f"Fashion-MNIST .*{tmp_path}.*FashionMNIST/raw"):
        experiment.load_sources(config)


def test_missing_files_are_named(folder):
    (folder / LABELS).unlink()
    message = (
        f"MNIST not found in data.dir={folder}: expected {LABELS} or .* get it from https.*{LABELS}, or with --con"
    )
    with pytest.raises(InputError, match=message):
        MNIST.load(folder, "test")
    with pytest.raises(InputError, match="MNIST not found .*train-images"):
        MNIST.load(folder / "elsewhere", "train")


@pytest.mark.parametrize(
    "name, array, message",
    [
        (IMAGES, np.zeros(50), "00000801, expected 00000803.*https"),
        (LABELS, np.zeros((50, 28, 28)), "00000803, expected 00000801"),
        (IMAGES, np.zeros((50, 28, 27)), r"size \(28, 27\), expected \(28, 28\)"),
        (LABELS, np.zeros(49), f"50 images .*{LABELS} 49 labels"),
        (LABELS, np.full(50, 10), "has a label 10, expected 0 to 9"),
    ],
    ids=["labels for images", "images for labels", "size", "count", "label"],
)
def test_another_file_in_its_place(folder, name, array, message):
    made_data.write_idx(folder / name, array)
    with pytest.raises(InputError, match=f"^{folder}/.*{message}") as caught:
        MNIST.load(folder, "test")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("name", [IMAGES, LABELS])
def test_truncated_archive(folder, name):
    (folder / name).write_bytes((folder / name).read_bytes()[:-10])
    with pytest.raises(InputError, match=f"{folder / name} .*https.*{name}$"):
        MNIST.load(folder, "test")


def test_truncated_file(tmp_path):
    path = made_data.write_mnist(tmp_path, suffix="") / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(InputError, match=f"{path} has 78411 bytes, .*78416"):
        MNIST.load(tmp_path, "train")
    path.write_bytes(path.read_bytes()[:9])
    with pytest.raises(InputError, match=f"{path} .*00000803 and 3 sizes"):
        MNIST.load(tmp_path, "train")


def test_download_that_fails_is_one_line(tmp_path):
    elsewhere = dataclasses.replace(MNIST, url=f"file://{tmp_path}/nowhere/")
    with pytest.raises(InputError, match="train-images-idx3-ubyte.gz cannot be downloaded"):
        elsewhere.load(tmp_path, "train", download=True)
