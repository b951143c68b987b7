"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009) from their official archives or folders, binary or python version."""

import dataclasses
import io
import pathlib
import pickle
import tarfile
import zlib
from collections.abc import Callable
from typing import Literal

import numpy as np

from posattn_jax.data.downloads import fetch
from posattn_jax.data.images import ImageSet
from posattn_jax.errors import InputError

URL = "https://www.cs.toronto.edu/~kriz/"
NUM_IMAGES = {"train": 50_000, "test": 10_000}
NUM_PIXELS = 3 * 32 * 32


@dataclasses.dataclass(frozen=True)
class Version:
    """One way in which a set is published: an archive, the folder in it, and the files of each split in that."""

    archive: str
    md5: str
    folder: str
    files: dict[str, list[str]]


@dataclasses.dataclass(frozen=True)
class Cifar:
    """What tells the sets apart.

    Attributes:
      title: the name of the set.
      num_classes: how many labels there are.
      label_bytes: how many bytes come before the pixels of a binary record; the last is the label.
      label_key: the name of the labels in the python version.
      binary, python: the two versions.
    """

    title: str
    num_classes: int
    label_bytes: int
    label_key: bytes
    binary: Version
    python: Version

    def load(self, folder: pathlib.Path, split: Literal["train", "test"], download: bool = False) -> ImageSet:
        """Reads one split, "train" (50,000 images) or "test" (10,000).

        Args:
          folder: has an official archive, or its unpacked folder, or is that folder.
          split: "train" or "test".
          download: whether to fetch the binary archive into `folder` where nothing is found.

        Raises:
          InputError: nothing is found, or a file is damaged; the message says what and where.
        """
        found = self._find(folder, split)
        if found is None and download:
            fetch(URL + self.binary.archive, self.binary.md5, folder)
            found = self._find(folder, split)
        if found is None:
            binary, python = self.binary, self.python
            raise InputError(
                f"{self.title} not found in data.dir={folder}: expected {binary.archive}, {python.archive} or an "
                f"unpacked {binary.folder} or {python.folder} there; get it from {URL}{binary.archive}, or "
                "with --config.data.download=True"
            )
        names, read = found
        images, labels = [], []
        for name in names:
            decode = self._decode_binary if name.endswith(".bin") else self._decode_pickle
            try:
                file_images, file_labels = decode(read(name), NUM_IMAGES[split] // len(names))
            except ValueError as error:
                raise InputError(f"{name} in {folder} {error}: get the {self.title} archive again") from error
            images.append(file_images)
            labels.append(file_labels)
        planar = np.concatenate(images).reshape(-1, 3, 32, 32)
        return ImageSet(np.ascontiguousarray(planar.transpose(0, 2, 3, 1)), np.concatenate(labels), self.num_classes)

    def _find(self, folder: pathlib.Path, split: str) -> tuple[list[str], Callable[[str], bytes]] | None:
        """The names of a split's files and a function that reads one: of a folder, else of an archive."""
        for version in (self.binary, self.python):
            files = version.files[split]
            for place in (folder, folder / version.folder):
                if (place / files[0]).is_file():
                    return files, lambda name, place=place: self._read_file(place / name)
        for version in (self.binary, self.python):
            path = folder / version.archive
            if path.exists():
                inner = version.folder
                return version.files[split], lambda name, path=path, inner=inner: _read_member(path, f"{inner}/{name}")
        return None

    def _read_file(self, path: pathlib.Path) -> bytes:
        if not path.exists():
            raise InputError(f"{path.name} is missing in {path.parent}: unpack the {self.title} archive again")
        return path.read_bytes()

    def _decode_binary(self, data: bytes, num_images: int) -> tuple[np.ndarray, np.ndarray]:
        """Planar images [n, 3072] and labels [n] of a file; ValueError where it holds something else."""
        record_bytes = self.label_bytes + NUM_PIXELS
        if len(data) != num_images * record_bytes:
            raise ValueError(f"has {len(data)} bytes, expected {num_images * record_bytes}")
        records = np.frombuffer(data, np.uint8).reshape(num_images, record_bytes)
        return records[:, self.label_bytes :], records[:, self.label_bytes - 1].astype(np.int64)

    def _decode_pickle(self, data: bytes, num_images: int) -> tuple[np.ndarray, np.ndarray]:
        """The same of the python version."""
        try:
            batch = _ArrayUnpickler(io.BytesIO(data), encoding="bytes").load()
            images, labels = np.asarray(batch[b"data"], np.uint8), np.asarray(batch[self.label_key], np.int64)
            if images.shape != (num_images, NUM_PIXELS) or labels.shape != (num_images,):
                raise ValueError(f"arrays of shape {images.shape} and {labels.shape}")
        except Exception as error:  # a damaged pickle can raise anything
            raise ValueError(f"cannot be read ({error})") from error
        return images, labels


CIFAR10 = Cifar(
    title="CIFAR-10",
    num_classes=10,
    label_bytes=1,
    label_key=b"labels",
    binary=Version(
        "cifar-10-binary.tar.gz",
        "c32a1d4ab5d03f1284b67883e8d87530",
        "cifar-10-batches-bin",
        {"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "test": ["test_batch.bin"]},
    ),
    python=Version(
        "cifar-10-python.tar.gz",
        "c58f30108f718f92721af3b95e74349a",
        "cifar-10-batches-py",
        {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]},
    ),
)
CIFAR100 = Cifar(  # its labels are the fine ones; a binary record has a coarse one before
    title="CIFAR-100",
    num_classes=100,
    label_bytes=2,
    label_key=b"fine_labels",
    binary=Version(
        "cifar-100-binary.tar.gz",
        "03b5dce01913d631647c71ecec9e9cb8",
        "cifar-100-binary",
        {"train": ["train.bin"], "test": ["test.bin"]},
    ),
    python=Version(
        "cifar-100-python.tar.gz",
        "eb9058c3a382ffc7106e4002c42a8d85",
        "cifar-100-python",
        {"train": ["train"], "test": ["test"]},
    ),
)


def _read_member(archive: pathlib.Path, member: str) -> bytes:
    try:
        with tarfile.open(archive) as tar:
            file = tar.extractfile(member)
            return file.read() if file else b""
    except (tarfile.TarError, zlib.error, KeyError, EOFError, OSError) as error:
        raise InputError(
            f"{archive} cannot be read at {member} ({error}): download it again from {URL}{archive.name}"
        ) from error


class _ArrayUnpickler(pickle.Unpickler):
    """Builds numpy arrays and plain containers, and nothing else: a pickle may name any function."""

    ALLOWED = ("_reconstruct", "ndarray", "dtype", "encode")

    def find_class(self, module, name):
        if name in self.ALLOWED and module.split(".")[0] in ("numpy", "_codecs"):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is not allowed")
