"""A folder of image files, in which each class has its own folder."""

import concurrent.futures
import dataclasses
import math
import os
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Literal

import numpy as np

from posattn_jax.axes import Sizes
from posattn_jax.data.images import ImageSet, image_files
from posattn_jax.data.images.user_images import NamedImages, UserImages
from posattn_jax.data.pipeline import user_data
from posattn_jax.data.pipeline.checksums import Files, found_below
from posattn_jax.data.pipeline.data_set import Reading
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import files_below

KNOWN = {name for names in user_data.PARTS.values() for name in names}


@dataclasses.dataclass(frozen=True)
class ImageFolder(UserImages):
    """PNG, JPEG and WebP files of any size in FOLDER/CLASS; or in FOLDER/train/CLASS, and likewise in val and test.

    Files are read as for `--mode=predict`: see `image_files.read`. Linked folders are followed: see `files_below`. An
    image to which several links of a class lead is read once. The classes are the folders of the train part. Without
    such parts, no class may have the name of one, such as "test".

    Attributes:
      dir: the folder. Without val, the run's seed splits the train part.
      height, width, channels: the size to which images are resized, and their channels; 1 channel is grey.
      layout: "2d"; "1d": the row-major sequence of pixels.
      pool: the factor by which height and width are mean-pooled.
      mean, deviation: one per channel, or one for all. The model gets (x - mean) / deviation, x from 0 to 1.
      malformed: whether to refuse or to skip files that cannot be read, files that are not in the folder of a class,
        and folders next to train that are no parts.
      validation_limit: use only the first so many images of the validation part; 0: all.
    """

    dir: str = "data/images"
    height: int = 64
    width: int = 64
    channels: Literal[1, 3] = 3
    layout: Literal["1d", "2d"] = "2d"
    pool: int = 1
    mean: tuple[float, ...] = (0.5,)
    deviation: tuple[float, ...] = (0.5,)
    malformed: user_data.Malformed = "refuse"
    validation_limit: int = 0

    name: ClassVar[str] = "image folder"

    def __post_init__(self):
        for name in ("height", "width"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: expected at least 1")
        for name in ("mean", "deviation"):
            if len(given := getattr(self, name)) not in (1, self.channels) or not all(map(math.isfinite, given)):
                raise ValueError(
                    f"{name}={given}: expected a number for each of {self.channels} channels, or one for all"
                )
        if min(self.deviation) <= 0:
            raise ValueError(f"deviation={self.deviation}: expected more than 0")

    def parts(self) -> dict[str, pathlib.Path]:
        folder = pathlib.Path(self.dir)
        if not folder.is_dir():
            raise InputError(f"data.dir={folder}: no such folder (expected one with a folder of images for each class)")
        found = self._folders()
        if "train" in found or {name.lower() for name in found} & KNOWN:  # which then says that there is no train
            return user_data.find_parts(folder)
        return {"train": folder}

    def load(self, reading: Reading) -> dict[str, Any]:
        folder, expected = pathlib.Path(self.dir), f"is no part: expected {', '.join(sorted(KNOWN))}"
        if self.parts()["train"] != folder:
            wrong = [InputError(f"{folder / name}: {expected}") for name in sorted(self._folders() - KNOWN)]
            user_data.sift([*wrong, *self._folders() & KNOWN], "data.dir", "folders", self.malformed)
        return super().load(reading)

    def _folders(self) -> set[str]:
        """The names of the folders in `dir` that are not hidden."""
        return {each.name for each in pathlib.Path(self.dir).iterdir() if each.is_dir() and each.name[0] != "."}

    def read(self, part: str, path: pathlib.Path, known: dict[str, Any] | None) -> NamedImages:
        found, wrong = image_files.below(path)
        files = _once_a_class(found, path)
        if others := len(files_below(path, hidden=True)[0]) - len(found):
            expected = ", ".join(image_files.SUFFIXES)
            print(f"{part}: files in {path} that are not read: {others:,}, hidden or not {expected}")
        if links := len(found) - len(files):
            print(f"{part}: links in {path} to images that the same class has already: {links:,}, not read")
        if known is None:
            names = user_data.names_of(filter(None, (_class_of(file, path) for file in files)), part, path)
        else:
            names = tuple(known["classes"])
        examples = user_data.sift([*wrong, *self._examples(files, path, names)], part, "images", self.malformed)
        images, labels = zip(*examples, strict=True)
        print(f"{part}: {len(images):,} images of {len(set(labels))} classes in {path}")
        return self.lay_out(ImageSet(np.stack(images), np.array(labels), len(names)), names)

    def _examples(
        self, files: list[pathlib.Path], path: pathlib.Path, names: tuple[str, ...]
    ) -> Iterator[tuple[np.ndarray, int] | InputError]:
        """Each image and the number of its class, or the error of the file."""
        number_of = user_data.numbering(names)

        def read(file: pathlib.Path) -> tuple[np.ndarray, int] | InputError:
            label = _class_of(file, path)
            number = number_of(label)
            if number is None:
                return InputError(
                    f"{file}: {user_data.unknown(label, names) if label else f'is in no folder of {path}'}"
                )
            try:
                return image_files.read(file, self.height, self.width, self.channels), number
            except InputError as error:
                return error

        with concurrent.futures.ThreadPoolExecutor() as threads:  # Pillow releases the GIL
            yield from threads.map(read, files)

    def lay_out(self, images: ImageSet, names: tuple[str, ...]) -> NamedImages:
        return NamedImages(images, self.layout, self.pool, self.mean, self.deviation, names)

    def input_shape(self, source: Any) -> Sizes:
        images = np.zeros((0, self.height, self.width, self.channels), np.uint8)
        empty = ImageSet(images, np.zeros(0, np.int64), source.images.num_classes)
        return super().input_shape(dataclasses.replace(source, images=empty))

    def files(self) -> Files:
        paths = lambda: (
            file for path in self.parts().values() for file in _once_a_class(image_files.below(path)[0], path)
        )
        return found_below(self.dir, paths)


def _once_a_class(files: Iterable[pathlib.Path], folder: pathlib.Path) -> list[pathlib.Path]:
    """The files without those that are, by links, a file of the same class before them."""
    first: dict[tuple[str, str], pathlib.Path] = {}
    for file in files:
        first.setdefault((_class_of(file, folder), os.path.realpath(file)), file)
    return [*first.values()]


def _class_of(file: pathlib.Path, folder: pathlib.Path) -> str:
    """The name of the class of a file: its folder within `folder`; "": it is in none."""
    first, *more = file.relative_to(folder).parts
    return first if more else ""
