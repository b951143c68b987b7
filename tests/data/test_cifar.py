import pickle
import time

import numpy as np
import pytest

from posattn_jax.data.cifar import CIFAR10, CIFAR100
from posattn_jax.errors import InputError
from tests import made_data


@pytest.fixture(scope="module")
def binary(tmp_path_factory):
    return made_data.write_binary(tmp_path_factory.mktemp("binary"))


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    return made_data.write_python(tmp_path_factory.mktemp("python"))


@pytest.fixture(scope="module")
def binary_100(tmp_path_factory):
    return made_data.write_binary_100(tmp_path_factory.mktemp("binary_100"))


@pytest.fixture(scope="module")
def python_100(tmp_path_factory):
    return made_data.write_python_100(tmp_path_factory.mktemp("python_100"))


def test_planar_records_become_images(binary):
    loaded = CIFAR10.load(binary.parent, "train")
    images, labels = made_data.records(0)
    assert loaded.images.shape == (50_000, 32, 32, 3) and loaded.images.dtype == np.uint8
    np.testing.assert_array_equal(loaded.labels[:10_000], labels)
    np.testing.assert_array_equal(loaded.images[7, :, :, 1].ravel(), images[7, 1024:2048])
    assert len(CIFAR10.load(binary, "test")) == 10_000


@pytest.mark.parametrize("cifar, suffix", [(CIFAR10, ""), (CIFAR100, "_100")], ids=["10", "100"])
def test_every_layout_gives_the_same_images(request, tmp_path, cifar, suffix):
    binary, python = (request.getfixturevalue(name + suffix) for name in ("binary", "python"))
    expected = cifar.load(binary, "test")
    assert len(expected) == 10_000
    folders = [binary.parent, python, python.parent]
    for inner, version in ((binary, cifar.binary), (python, cifar.python)):
        folder = tmp_path / version.archive.split(".")[0]
        folder.mkdir()
        made_data.write_archive(inner, folder / version.archive, version.files["test"][0])
        folders.append(folder)
    for folder in folders:
        loaded = cifar.load(folder, "test")
        np.testing.assert_array_equal(loaded.images, expected.images)
        np.testing.assert_array_equal(loaded.labels, expected.labels)


def test_labels_of_cifar100_are_the_fine_ones(binary_100):
    loaded = CIFAR100.load(binary_100, "test")
    assert loaded.num_classes == 100
    np.testing.assert_array_equal(loaded.labels, made_data.fine_and_coarse()[0])
    np.testing.assert_array_equal(loaded.images[7, :, :, 2].ravel(), made_data.records(6)[0][7, 2048:])


def test_cifar100_has_50_000_training_images(binary_100):
    message = "train.bin in .* has 6148 bytes, expected 153700000: get the CIFAR-100 archive again"
    with pytest.raises(InputError, match=message):
        CIFAR100.load(binary_100, "train")


def test_missing_is_told_at_once(tmp_path):
    started = time.perf_counter()
    (tmp_path / "train").mkdir()  # a folder of that name is no file of CIFAR-100's
    for cifar in (CIFAR10, CIFAR100):
        with pytest.raises(InputError, match=f"{cifar.title} not found in data.dir=.*get it from https.*download=True"):
            cifar.load(tmp_path, "train")
    assert time.perf_counter() - started < 1


def test_missing_file(binary, tmp_path):
    (tmp_path / "data_batch_1.bin").write_bytes((binary / "data_batch_1.bin").read_bytes())
    with pytest.raises(InputError, match=f"data_batch_2.bin is missing in {tmp_path}"):
        CIFAR10.load(tmp_path, "train")


def test_truncated_file(binary, tmp_path):
    (tmp_path / "test_batch.bin").write_bytes((binary / "test_batch.bin").read_bytes()[:-5])
    with pytest.raises(InputError, match="test_batch.bin in .* has 30729995 bytes, expected 30730000"):
        CIFAR10.load(tmp_path, "test")


def test_truncated_archive(binary, tmp_path):
    archive = made_data.write_archive(binary, tmp_path / "cifar-10-binary.tar.gz", "data_batch_1.bin")
    archive.write_bytes(archive.read_bytes()[:1_000_000])
    with pytest.raises(InputError, match=r"cifar-10-binary.tar.gz cannot be read at .*data_batch_1.bin"):
        CIFAR10.load(tmp_path, "train")


class Evil:
    def __reduce__(self):
        return (print, ("executed",))


def test_a_pickle_may_build_arrays_only(python, tmp_path, capsys):
    (tmp_path / "test_batch").write_bytes(pickle.dumps({b"data": Evil()}, protocol=2))
    with pytest.raises(InputError, match="not allowed"):
        CIFAR10.load(tmp_path, "test")
    assert "executed" not in capsys.readouterr().out
