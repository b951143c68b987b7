import io
import pickle
import sys
import tarfile
import time

import numpy as np
import pytest

from posattn_jax.data.images.cifar import CIFAR10, CIFAR100
from posattn_jax.system.errors import InputError
from tests.support import made_data
from tests.support.slow import slow


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


@pytest.mark.slow
@pytest.mark.parametrize("cifar, suffix", [slow(CIFAR10, ""), (CIFAR100, "_100")], ids=["10", "100"])
def test_every_format_gives_the_same_images(request, tmp_path, cifar, suffix):
    binary, python = (request.getfixturevalue(name + suffix) for name in ("binary", "python"))
    expected = cifar.load(binary, "test")
    assert len(expected) == 10_000
    folders = [binary.parent, python, python.parent]
    for inner, version in ((binary, cifar.binary), (python, cifar.python)):
        folder = tmp_path / version.archive.split(".")[0]
        folder.mkdir()
        made_data.write_archive(inner, folder / version.archive, next(iter(version.files["test"])))
        folders.append(folder)
    for folder in folders:
        loaded = cifar.load(folder, "test")
        np.testing.assert_array_equal(loaded.images, expected.images)
        np.testing.assert_array_equal(loaded.labels, expected.labels)


def test_a_label_of_no_class_is_refused(tmp_path):
    records = np.zeros((10_000, 3073), np.uint8)
    records[5, 0] = 10
    (tmp_path / "test_batch.bin").write_bytes(records.tobytes())
    with pytest.raises(InputError, match="test_batch.bin in .* has a label 10, expected 0 to 9: "):
        CIFAR10.load(tmp_path, "test")


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
        with pytest.raises(InputError, match=f"{cifar.title} not found .*https.*download=True"):
            cifar.load(tmp_path, "train")
    assert time.perf_counter() - started < 1


def test_missing_file(binary, tmp_path):
    (tmp_path / "data_batch_1.bin").write_bytes((binary / "data_batch_1.bin").read_bytes())
    with pytest.raises(InputError, match=f"data_batch_2.bin .*{tmp_path}"):
        CIFAR10.load(tmp_path, "train")


def test_truncated_file(binary, tmp_path):
    (tmp_path / "test_batch.bin").write_bytes((binary / "test_batch.bin").read_bytes()[:-5])
    with pytest.raises(InputError, match="test_batch.bin in .*30729995 bytes, .* 30730000"):
        CIFAR10.load(tmp_path, "test")


def test_truncated_archive(binary, tmp_path):
    archive = made_data.write_archive(binary, tmp_path / "cifar-10-binary.tar.gz", "data_batch_1.bin")
    archive.write_bytes(archive.read_bytes()[:1_000_000])
    with pytest.raises(InputError, match=r"cifar-10-binary.tar.gz .*data_batch_1.bin"):
        CIFAR10.load(tmp_path, "train")


def write_tar(path, *members, damage=None):
    """A .tar.gz of (name, content, or what else a member may be)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=0) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                info.size = len(content)
            else:
                info.type, info.linkname = content
            tar.addfile(info, io.BytesIO(content) if isinstance(content, bytes) else None)
    data = bytearray(buffer.getvalue())
    if damage is not None:
        data[damage] ^= 1
    path.write_bytes(data)


def test_an_archive_unpacks_nothing(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    records = bytes(30_730_000)
    inner = "cifar-10-batches-bin/test_batch.bin"
    write_tar(
        folder / "cifar-10-binary.tar.gz",
        ("../escaped.bin", b"out"),
        (str(tmp_path / "absolute.bin"), b"out"),
        ("cifar-10-batches-bin/link", (tarfile.SYMTYPE, "/etc/passwd")),
        (inner, records),
    )
    assert len(CIFAR10.load(folder, "test")) == 10_000
    assert [path.name for path in tmp_path.rglob("*")] == ["data", "cifar-10-binary.tar.gz"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE])
def test_a_link_is_not_followed(tmp_path, kind):
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(30_730_000))
    member = "cifar-10-batches-bin/test_batch.bin"
    write_tar(tmp_path / "cifar-10-binary.tar.gz", (member, (kind, str(secret))))
    with pytest.raises(InputError, match=rf"{member} .*no plain file"):
        CIFAR10.load(tmp_path, "test")


def test_an_archive_is_read_to_its_check_sum(binary, tmp_path, caplog):
    """One bit of a pixel: of what is not compressed the unpacker notices nothing before."""
    content = (binary / "test_batch.bin").read_bytes()
    write_tar(tmp_path / "cifar-10-binary.tar.gz", ("cifar-10-batches-bin/test_batch.bin", content), damage=10_000_000)
    with pytest.raises(InputError, match=r"cifar-10-binary.tar.gz .*CRC check"):
        CIFAR10.load(tmp_path, "test")
    assert "cifar-10-binary.tar.gz is not the official file" in caplog.text


@pytest.mark.slow
def test_a_file_that_is_not_the_official_one_is_told(python, caplog):
    CIFAR10.load(python, "test")
    assert f"{python}/test_batch is not the official file" in caplog.text


@pytest.mark.parametrize(
    "module, name",
    [
        ("builtins", "print"),
        ("posix", "system"),
        ("numpy", "load"),
        ("numpy.f2py.__main__", "dtype"),
        ("numpy.lib.npyio", "ndarray"),
        ("_codecs", "lookup"),
        ("numpy.core.multiarray", "fromfile"),
    ],
)
def test_a_pickle_may_build_arrays_only(tmp_path, capfd, module, name):
    (tmp_path / "test_batch").write_bytes(f"c{module}\n{name}\n(S'executed'\ntR.".encode())  # a call of it
    before = set(sys.modules)
    with pytest.raises(InputError, match=rf"test_batch in .*{module}.{name} is not allowed"):
        CIFAR10.load(tmp_path, "test")
    assert "executed" not in capfd.readouterr().out
    assert not any("f2py.__main__" in each for each in set(sys.modules) - before), "nor is a module imported"


class Evil:
    def __reduce__(self):
        return (print, ("executed",))


def test_what_is_hidden_in_an_array_is_not_executed(tmp_path, capsys):
    hidden = {b"data": np.array([Evil()], object)}
    (tmp_path / "test_batch").write_bytes(pickle.dumps(hidden, protocol=2))
    with pytest.raises(InputError, match="print is not allowed"):
        CIFAR10.load(tmp_path, "test")
    assert "executed" not in capsys.readouterr().out
