"""ImageNet at 64 x 64 (Chrabaszcz 2017), from its official zips of .npz files."""

import dataclasses
import io
import pathlib
import re
import zipfile
import zlib
from collections.abc import Iterator

import numpy as np

from posattn_jax.data.images import ImageRecord, ImageSet, Split
from posattn_jax.system.errors import InputError

PAGE = "https://image-net.org/download-images.php"
ZIPS = {
    "train": ("Imagenet64_train_part1_npz.zip", "Imagenet64_train_part2_npz.zip"),
    "test": ("Imagenet64_val_npz.zip",),  # ImageNet's validation part: labels of its test images are not public
}


@dataclasses.dataclass(frozen=True)
class DownsampledImageNet(ImageRecord):
    """The set. The name of a label is its official number, from 1.

    Attributes:
      num_images: the number of images of each part.
      sides, channels, names: see `ImageRecord`.
    """

    num_images: dict[str, int]
    sides: tuple[int, ...] = (64, 64)
    channels: int = 3
    names: tuple[str, ...] = tuple(str(i) for i in range(1, 1001))

    def load(self, folder: pathlib.Path, split: Split, download: bool = False) -> ImageSet:
        """See `ImageRecord`. Access to the set is restricted, so `download` has no effect."""
        paths = [folder / name for name in ZIPS[split]]
        for path in paths:
            if not path.is_file():
                raise InputError(f"{path} is missing: {PAGE} says how to get it")
        expected, found = self.num_images[split], 0
        images, labels = np.empty((expected, *self.sides, self.channels), np.uint8), np.empty(expected, np.int64)
        for path in paths:
            for pixels, own in self._batches(path):
                batch = slice(found, found + len(own))
                found += len(own)
                if found <= expected:
                    images[batch], labels[batch] = pixels, own
        if found != expected:
            raise InputError(f"{folder}: {', '.join(ZIPS[split])} have {found:,} images, expected {expected:,}")
        return ImageSet(images, labels, len(self.names))

    def files(self, folder: pathlib.Path, split: str) -> list[pathlib.Path]:
        return [folder / name for name in ZIPS[split] if (folder / name).is_file()]

    def _batches(self, path: pathlib.Path) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Images [n *sides channels] and labels [n], from 0, of each file in a zip, in the order of its number."""
        name = ""
        try:
            with zipfile.ZipFile(path) as zipped:
                names = [each for each in zipped.namelist() if each.endswith(".npz")]
                for name in sorted(names, key=lambda each: [int(number) for number in re.findall(r"\d+", each)]):
                    # read as a whole: seeking in the zipped file would unpack it again and again
                    with np.load(io.BytesIO(zipped.read(name)), allow_pickle=False) as batch:
                        planes, labels = batch["data"], batch["labels"].astype(np.int64) - 1
                    if len(labels) and not 0 <= labels.min() <= labels.max() < len(self.names):
                        raise ValueError(f"labels from {labels.min() + 1} to {labels.max() + 1}")
                    yield np.moveaxis(planes.reshape(len(labels), self.channels, *self.sides), 1, -1), labels
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, KeyError, ValueError) as error:
            raise InputError(f"{path} cannot be read at {name} ({error}): get it again") from error


SETS = {"imagenet64": DownsampledImageNet({"train": 1_281_167, "test": 50_000})}
