"""CIFAR-10 (Krizhevsky 2009) from its official archives or their folders, binary or python version."""

import io
import pathlib
import pickle
import tarfile
import zlib
from collections.abc import Callable

import numpy as np
import pooch

from posattn_jax.data.images import ImageSet
from posattn_jax.errors import InputError

NUM_CLASSES = 10
RECORD_BYTES = 1 + 3 * 32 * 32
IMAGES_A_FILE = 10_000
URL = "https://www.cs.toronto.edu/~kriz/"
# archive: md5, its folder, its files, which it names for train and test
VERSIONS = {
    "cifar-10-binary.tar.gz": (
        "c32a1d4ab5d03f1284b67883e8d87530",
        "cifar-10-batches-bin",
        {"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "test": ["test_batch.bin"]},
    ),
    "cifar-10-python.tar.gz": (
        "c58f30108f718f92721af3b95e74349a",
        "cifar-10-batches-py",
        {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]},
    ),
}


def load(folder: pathlib.Path, split: str, download: bool = False) -> ImageSet:
    """Reads one split, "train" (50,000 images) or "test" (10,000).

    Args:
      folder: has an official archive, or its unpacked folder, or is that folder.
      split: "train" or "test".
      download: whether to fetch the binary archive into `folder` where nothing is found.

    Raises:
      InputError: nothing is found, or a file is damaged; the message says what and where.
    """
    found = _find(folder, split)
    if found is None and download:
        _download(folder)
        found = _find(folder, split)
    if found is None:
        raise InputError(
            f"CIFAR-10 not found in data.dir={folder}: expected cifar-10-binary.tar.gz, cifar-10-python.tar.gz or an "
            f"unpacked cifar-10-batches-bin or cifar-10-batches-py there; get it from {URL}cifar-10-binary.tar.gz, or "
            "with --config.data.download=True"
        )
    names, read = found
    images, labels = [], []
    for name in names:
        decode = _decode_binary if name.endswith(".bin") else _decode_pickle
        batch_images, batch_labels = decode(read(name), name, folder)
        images.append(batch_images)
        labels.append(batch_labels)
    planar = np.concatenate(images).reshape(-1, 3, 32, 32)
    return ImageSet(np.ascontiguousarray(planar.transpose(0, 2, 3, 1)), np.concatenate(labels), NUM_CLASSES)


def _find(folder: pathlib.Path, split: str) -> tuple[list[str], Callable[[str], bytes]] | None:
    """The names of a split's files and a function that reads one: of a folder, else of an archive."""
    for _, inner, files in VERSIONS.values():
        for place in (folder, folder / inner):
            if (place / files[split][0]).exists():
                return files[split], lambda name, place=place: _read_file(place / name)
    for archive, (_, inner, files) in VERSIONS.items():
        path = folder / archive
        if path.exists():
            return files[split], lambda name, path=path, inner=inner: _read_member(path, f"{inner}/{name}")
    return None


def _read_file(path: pathlib.Path) -> bytes:
    if not path.exists():
        raise InputError(f"{path.name} is missing in {path.parent}: unpack the CIFAR-10 archive again")
    return path.read_bytes()


def _read_member(archive: pathlib.Path, member: str) -> bytes:
    try:
        with tarfile.open(archive) as tar:
            file = tar.extractfile(member)
            return file.read() if file else b""
    except (tarfile.TarError, zlib.error, KeyError, EOFError, OSError) as error:
        raise InputError(
            f"{archive} cannot be read at {member} ({error}): download it again from {URL}{archive.name}"
        ) from error


def _decode_binary(data: bytes, name: str, folder: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    expected = IMAGES_A_FILE * RECORD_BYTES
    if len(data) != expected:
        raise InputError(
            f"{name} in {folder} has {len(data)} bytes, expected {expected}: get the CIFAR-10 archive again"
        )
    records = np.frombuffer(data, np.uint8).reshape(IMAGES_A_FILE, RECORD_BYTES)
    return records[:, 1:], records[:, 0].astype(np.int64)


class _ArrayUnpickler(pickle.Unpickler):
    """Builds numpy arrays and plain containers, and nothing else: a pickle may name any function."""

    ALLOWED = ("_reconstruct", "ndarray", "dtype", "encode")

    def find_class(self, module, name):
        if name in self.ALLOWED and module.split(".")[0] in ("numpy", "_codecs"):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is not allowed")


def _decode_pickle(data: bytes, name: str, folder: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        batch = _ArrayUnpickler(io.BytesIO(data), encoding="bytes").load()
        images, labels = np.asarray(batch[b"data"], np.uint8), np.asarray(batch[b"labels"], np.int64)
        if images.shape != (IMAGES_A_FILE, RECORD_BYTES - 1) or labels.shape != (IMAGES_A_FILE,):
            raise ValueError(f"arrays of shape {images.shape} and {labels.shape}")
    except Exception as error:  # a damaged pickle can raise anything
        raise InputError(f"{name} in {folder} cannot be read ({error}): get the CIFAR-10 archive again") from error
    return images, labels


def _download(folder: pathlib.Path) -> None:
    archive = "cifar-10-binary.tar.gz"
    try:
        pooch.retrieve(URL + archive, f"md5:{VERSIONS[archive][0]}", archive, folder, progressbar=True)
    except Exception as error:  # requests, urllib3 and pooch each have their own
        raise InputError(f"{URL}{archive} cannot be downloaded into {folder}: {error}") from error
