"""MNIST (LeCun, Cortes and Burges 1998), and sets in its format: official idx files, gzipped or not."""

import dataclasses
import gzip
import math
import pathlib
import zlib

import numpy as np

from posattn_jax.data.images import ImageRecord, ImageSet, Split
from posattn_jax.data.official.files import fetch, tell_if_not_official
from posattn_jax.system.errors import InputError

SIDE = 28
FASHION = "T-shirt/top, trouser, pullover, dress, coat, sandal, shirt, sneaker, bag, ankle boot"
SPLITS = {"train": "train", "test": "t10k"}  # what the names of its files begin with


@dataclasses.dataclass(frozen=True)
class IdxFiles(ImageRecord):
    """Images of 28 x 28 pixels in ten classes.

    Attributes:
      title: the name of the set.
      names: the names of the labels, in order.
      url: where the files are published.
      places: the places in a folder where the files may be.
      md5s: for each file, by its name without .gz: the MD5 of the .gz, and that of its content, or None.
    """

    title: str
    names: tuple[str, ...]
    url: str
    places: tuple[str, ...]
    md5s: dict[str, tuple[str, str | None]]
    sides: tuple[int, ...] = (SIDE, SIDE)
    channels: int = 1

    def load(self, folder: pathlib.Path, split: Split, download: bool = False) -> ImageSet:
        found = []
        for name in self._names(split):
            path = self._find(folder, name)
            if path is None and download:
                fetch(f"{self.url}{name}.gz", f"md5:{self.md5s[name][0]}", folder)
                path = self._find(folder, name)
            if path is None:
                *others, last = self.places[1:]
                within = f"{', in '.join(['there', *others])} or in {last}"
                raise InputError(
                    f"{self.title} not found in data.dir={folder}: expected {name}.gz or {name} {within}; get it from "
                    f"{self.url}{name}.gz, or with --config.data.download=True"
                )
            found.append(path)
        (images, labels), classes = (self._read(path) for path in found), len(self.names)
        if len(images) != len(labels):
            raise InputError(f"{found[0]} has {len(images)} images and {found[1]} {len(labels)} labels: get both again")
        if len(labels) and labels.max() >= classes:
            raise InputError(f"{found[1]} has a label {labels.max()}, expected 0 to {classes - 1}: get it again")
        return ImageSet(images[..., None], labels.astype(np.int64), classes)

    def files(self, folder: pathlib.Path, split: str) -> list[pathlib.Path]:
        return [path for name in self._names(split) if (path := self._find(folder, name)) is not None]

    def _names(self, split: str) -> list[str]:
        """The names of the files of images and of labels."""
        return [f"{SPLITS[split]}-{what}-ubyte" for what in ("images-idx3", "labels-idx1")]

    def _find(self, folder: pathlib.Path, name: str) -> pathlib.Path | None:
        places = [folder / place / file for place in self.places for file in (name, f"{name}.gz")]
        return next((path for path in places if path.is_file()), None)

    def _read(self, path: pathlib.Path) -> np.ndarray:
        """The unsigned bytes [n, *sides] of images, or [n] of labels.

        The header of a file is big-endian: 0, 0, 8 for unsigned bytes, the number of axes, and the size of each in 4
        bytes.
        """
        name = path.name.removesuffix(".gz")
        again, item_shape = f"get it again from {self.url}{name}.gz", self.sides if "images" in name else ()
        try:
            data = path.read_bytes()
            data = gzip.decompress(data) if path.suffix == ".gz" else data
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{path} cannot be read ({error}): {again}") from error
        num_axes = 1 + len(item_shape)
        magic, head_bytes = bytes([0, 0, 8, num_axes]), 4 + 4 * num_axes
        if data[:4] != magic or len(data) < head_bytes:
            raise InputError(
                f"{path} starts with {data[:4].hex()}, expected {magic.hex()} and {num_axes} sizes: {again}"
            )
        shape = tuple(np.frombuffer(data, ">u4", num_axes, offset=4).tolist())
        if shape[1:] != item_shape:
            raise InputError(f"{path} has items of size {shape[1:]}, expected {item_shape}: {again}")
        expected = head_bytes + math.prod(shape)
        if len(data) != expected:
            raise InputError(f"{path} has {len(data)} bytes, expected {expected} for {shape[0]} items: {again}")
        tell_if_not_official(path, self.md5s[name][1], data)
        return np.frombuffer(data, np.uint8, offset=head_bytes).reshape(shape)


SETS = {
    "mnist": IdxFiles(
        title="MNIST",
        names=tuple("0123456789"),
        url="https://ossci-datasets.s3.amazonaws.com/mnist/",
        places=(".", "mnist", "MNIST/raw"),  # the last is where torchvision puts them
        md5s={
            "train-images-idx3-ubyte": ("f68b3c2dcbeaaa9fbdd348bbdeb94873", "6bbc9ace898e44ae57da46a324031adb"),
            "train-labels-idx1-ubyte": ("d53e105ee54ea40749a09fcbcd1e9432", "a25bea736e30d166cdddb491f175f624"),
            "t10k-images-idx3-ubyte": ("9fb629c4189551a2d022fa330f9573f3", "2646ac647ad5339dbf082846283269ea"),
            "t10k-labels-idx1-ubyte": ("ec29112dd5afa0611ce80d1b7f02629c", "27ae3e4e09519cfbb04c329615203637"),
        },
    ),
    "fashion_mnist": IdxFiles(  # Xiao, Rasul and Vollgraf 2017
        title="Fashion-MNIST",
        names=tuple(FASHION.split(", ")),
        url="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        places=(".", "fashion_mnist", "FashionMNIST/raw"),
        md5s={
            "train-images-idx3-ubyte": ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", None),
            "train-labels-idx1-ubyte": ("25c81989df183df01b3e8a0aad5dffbe", None),
            "t10k-images-idx3-ubyte": ("bef4ecab320f06d8554ea6380940ec79", None),
            "t10k-labels-idx1-ubyte": ("bb300cfdad3c16e7a12a480ee83cd310", None),
        },
    ),
}
