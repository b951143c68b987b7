"""MNIST (LeCun, Cortes and Burges 1998) from its official idx files, gzipped or not."""

import gzip
import math
import pathlib
import zlib
from typing import Literal

import numpy as np

from posattn_jax.data.downloads import fetch, tell_if_not_official
from posattn_jax.data.images import ImageSet
from posattn_jax.system.errors import InputError

URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
NUM_CLASSES = 10
SIDE = 28
PLACES = (".", "mnist", "MNIST/raw")  # in the folder; the last is where torchvision puts them
# per split: the files of images and of labels, and the md5 of each .gz and of what is in it
FILES = {
    "train": {
        "train-images-idx3-ubyte": ("f68b3c2dcbeaaa9fbdd348bbdeb94873", "6bbc9ace898e44ae57da46a324031adb"),
        "train-labels-idx1-ubyte": ("d53e105ee54ea40749a09fcbcd1e9432", "a25bea736e30d166cdddb491f175f624"),
    },
    "test": {
        "t10k-images-idx3-ubyte": ("9fb629c4189551a2d022fa330f9573f3", "2646ac647ad5339dbf082846283269ea"),
        "t10k-labels-idx1-ubyte": ("ec29112dd5afa0611ce80d1b7f02629c", "27ae3e4e09519cfbb04c329615203637"),
    },
}


def load(folder: pathlib.Path, split: Literal["train", "test"], download: bool = False) -> ImageSet:
    """Reads one split, "train" (60,000 images of 28 x 28 in the official files) or "test" (10,000).

    Args:
      folder: has the idx files of the split, or has them in `mnist` or `MNIST/raw`.
      split: "train" or "test".
      download: whether to fetch the files that are not found into `folder`.

    Raises:
      InputError: a file is missing, damaged or of another kind; the message says what and where.
    """
    paths = []
    for name, (md5, _) in FILES[split].items():
        path = _find(folder, name)
        if path is None and download:
            fetch(f"{URL}{name}.gz", md5, folder)
            path = _find(folder, name)
        if path is None:
            raise InputError(
                f"MNIST not found in data.dir={folder}: expected {name}.gz or {name} there, in mnist or in MNIST/raw; "
                f"get it from {URL}{name}.gz, or with --config.data.download=True"
            )
        paths.append(path)
    md5s = [md5 for _, md5 in FILES[split].values()]
    images, labels = _read_idx(paths[0], (SIDE, SIDE), md5s[0]), _read_idx(paths[1], (), md5s[1])
    if len(images) != len(labels):
        raise InputError(f"{paths[0]} has {len(images)} images and {paths[1]} {len(labels)} labels: get both again")
    if len(labels) and labels.max() >= NUM_CLASSES:
        raise InputError(f"{paths[1]} has a label {labels.max()}, expected 0 to {NUM_CLASSES - 1}: get it again")
    return ImageSet(images[..., None], labels.astype(np.int64), NUM_CLASSES)


def files(folder: pathlib.Path, split: str) -> list[pathlib.Path]:
    """What `load` reads of a folder, as far as it is there."""
    return [path for name in FILES[split] if (path := _find(folder, name)) is not None]


def _find(folder: pathlib.Path, name: str) -> pathlib.Path | None:
    places = [folder / place / file for place in PLACES for file in (name, f"{name}.gz")]
    return next((path for path in places if path.is_file()), None)


def _read_idx(path: pathlib.Path, item_shape: tuple[int, ...], md5: str) -> np.ndarray:
    """The unsigned bytes [n, *item_shape] of an idx file, whose official content has this MD5.

    Its head is big-endian: 0, 0, 8 for unsigned bytes, the number of axes, and the size of each in 4 bytes.
    """
    again = f"get it again from {URL}{path.name.removesuffix('.gz')}.gz"
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if path.suffix == ".gz" else data
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read ({error}): {again}") from error
    num_axes = 1 + len(item_shape)
    magic, head_bytes = bytes([0, 0, 8, num_axes]), 4 + 4 * num_axes
    if data[:4] != magic or len(data) < head_bytes:
        raise InputError(f"{path} starts with {data[:4].hex()}, expected {magic.hex()} and {num_axes} sizes: {again}")
    shape = tuple(np.frombuffer(data, ">u4", num_axes, offset=4).tolist())
    if shape[1:] != item_shape:
        raise InputError(f"{path} has items of size {shape[1:]}, expected {item_shape}: {again}")
    expected = head_bytes + math.prod(shape)
    if len(data) != expected:
        raise InputError(f"{path} has {len(data)} bytes, expected {expected} for {shape[0]} items: {again}")
    tell_if_not_official(path, md5, data)
    return np.frombuffer(data, np.uint8, offset=head_bytes).reshape(shape)
