import pickle
import time

import numpy as np
import pytest

from posattn_jax.data import cifar10
from posattn_jax.errors import InputError
from tests import made_data


@pytest.fixture(scope="module")
def binary(tmp_path_factory):
    return made_data.write_binary(tmp_path_factory.mktemp("binary"))


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    return made_data.write_python(tmp_path_factory.mktemp("python"))


def test_planar_records_become_images(binary):
    loaded = cifar10.load(binary.parent, "train")
    images, labels = made_data.records(0)
    assert loaded.images.shape == (50_000, 32, 32, 3) and loaded.images.dtype == np.uint8
    np.testing.assert_array_equal(loaded.labels[:10_000], labels)
    np.testing.assert_array_equal(loaded.images[7, :, :, 1].ravel(), images[7, 1024:2048])
    assert len(cifar10.load(binary, "test")) == 10_000


def test_every_layout_gives_the_same_images(binary, python, tmp_path):
    expected = cifar10.load(binary, "test")
    folders = [python, python.parent]
    for inner, archive, name in (
        (binary, "cifar-10-binary.tar.gz", "test_batch.bin"),
        (python, "cifar-10-python.tar.gz", "test_batch"),
    ):
        folder = tmp_path / archive.split(".")[0]
        folder.mkdir()
        made_data.write_archive(inner, folder / archive, name)
        folders.append(folder)
    for folder in folders:
        loaded = cifar10.load(folder, "test")
        np.testing.assert_array_equal(loaded.images, expected.images)
        np.testing.assert_array_equal(loaded.labels, expected.labels)


def test_missing_is_told_at_once(tmp_path):
    started = time.perf_counter()
    with pytest.raises(InputError, match=r"not found in data.dir=.*get it from https.*download=True"):
        cifar10.load(tmp_path, "train")
    assert time.perf_counter() - started < 1


def test_missing_file(binary, tmp_path):
    (tmp_path / "data_batch_1.bin").write_bytes((binary / "data_batch_1.bin").read_bytes())
    with pytest.raises(InputError, match=f"data_batch_2.bin is missing in {tmp_path}"):
        cifar10.load(tmp_path, "train")


def test_truncated_file(binary, tmp_path):
    (tmp_path / "test_batch.bin").write_bytes((binary / "test_batch.bin").read_bytes()[:-5])
    with pytest.raises(InputError, match="test_batch.bin in .* has 30729995 bytes, expected 30730000"):
        cifar10.load(tmp_path, "test")


def test_truncated_archive(binary, tmp_path):
    archive = made_data.write_archive(binary, tmp_path / "cifar-10-binary.tar.gz", "data_batch_1.bin")
    archive.write_bytes(archive.read_bytes()[:1_000_000])
    with pytest.raises(InputError, match=r"cifar-10-binary.tar.gz cannot be read at .*data_batch_1.bin"):
        cifar10.load(tmp_path, "train")


class Evil:
    def __reduce__(self):
        return (print, ("executed",))


def test_a_pickle_may_build_arrays_only(python, tmp_path, capsys):
    (tmp_path / "test_batch").write_bytes(pickle.dumps({b"data": Evil()}, protocol=2))
    with pytest.raises(InputError, match="not allowed"):
        cifar10.load(tmp_path, "test")
    assert "executed" not in capsys.readouterr().out
