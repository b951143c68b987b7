"""Data sets of labelled images, by name: on a grid, or as points."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from posattn_jax.axes import Sizes
from posattn_jax.data.images import GridImages, ImageRecord, ImageSet, Points, Split, cifar, imagenet, mnist
from posattn_jax.data.images.moving_mnist import Clips, Stills
from posattn_jax.data.pipeline import prepared
from posattn_jax.data.pipeline.checksums import Files, found_below
from posattn_jax.data.pipeline.data_set import DataSet, Reading, limited, split
from posattn_jax.system.errors import InputError


@dataclasses.dataclass(frozen=True)
class Digits(ImageRecord):
    """The handwritten digits of scikit-learn, which is a dependency: 1,797 real images, without a test part."""

    sides: tuple[int, ...] = (8, 8)
    channels: int = 1
    names: tuple[str, ...] = tuple("0123456789")

    def load(self, folder: pathlib.Path, split: Split, download: bool = False) -> ImageSet | None:
        if split != "train":
            return None
        from sklearn.datasets import load_digits  # takes seconds, and most runs read other data

        digits: Any = load_digits()
        images = digits.images.astype(np.uint8)[..., None]
        return ImageSet(images, digits.target.astype(np.int64), num_classes=10, max_value=16)


SETS: Mapping[str, ImageRecord] = {"digits": Digits()} | mnist.SETS | cifar.SETS | imagenet.SETS


@dataclasses.dataclass(frozen=True)
class LabelledImages(DataSet):
    """Images, or clips made from images.

    Attributes:
      name: digits, mnist, cifar10, cifar100 (its fine labels), imagenet64, ...: see `SETS`; or tfds/NAME for a set
        that tensorflow-datasets has prepared.
      dir: the folder of the set's official files, or of prepared sets.
      download: whether to download official files that are missing.
      scene: how the images are placed, or move, on a larger canvas; None: the images themselves.
      validation: "split": a fifth of the train part, drawn by the run's seed; "test": the test part, and all of the
        train part is used for training.
      validation_limit: use only the first so many images of the validation part; 0: all.
    """

    name: str = "cifar10"
    dir: str = "data"
    download: bool = False
    scene: Stills | Clips | None = None
    validation: Literal["split", "test"] = "split"
    validation_limit: int = 0

    @property
    def record(self) -> ImageRecord:
        """The record of the set. Raises InputError if there is no set of this name, or if it is not prepared."""
        name, folder = self.name, pathlib.Path(self.dir)
        if name.startswith("tfds/"):
            return prepared.images(name.removeprefix("tfds/"), folder)
        if name not in SETS:
            raise InputError(f'data.name="{name}": expected {", ".join(SETS)} or tfds/NAME')
        return prepared.images(name, folder) if prepared.find(name, folder) else SETS[name]

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the labels, in order."""
        return getattr(self.scene, "names", self.record.names)

    @property
    def shape(self) -> tuple[int, ...]:
        """[*sides, channels] of an image. Raises InputError if the set does not say their size."""
        record = self.record
        sides = record.sides if self.scene is None else self.scene.sides
        if None in sides:
            raise InputError(f'data.name="{self.name}": its images differ in size')
        return (*sides, record.channels)

    def read(self, part: Split) -> ImageSet | None:
        """The images of a part, by the official split; None if the set does not have this part."""
        images = self.record.load(pathlib.Path(self.dir), part, self.download)
        return images if self.scene is None or images is None else self.scene.of(images, part)

    def load(self, reading: Reading) -> dict[str, Any]:
        train = self.read("train")
        assert train is not None, "every set has a train part"
        test = self.read("test") if self.validation == "test" or reading.evaluates else None
        if self.validation == "split":
            train, validation = split(train, reading.seed, train_share=0.8)  # 40k / 10k: Alfons 2022, section 4.1
        elif test is None:
            raise InputError(f'data.validation="test": {self.name} has no test part')
        else:
            validation = test
        validation = limited(validation, self.validation_limit)
        parts = {"train": train, "validation": validation, "test": test if reading.evaluates else None}
        return {name: self.lay_out(part) for name, part in parts.items() if part is not None}

    def lay_out(self, images: ImageSet) -> Any:
        """The source of the given images, in the layout of this data set."""
        raise NotImplementedError

    def input_shape(self, source: Any) -> Sizes:
        return self.lay_out(source.images).knows["input_shape"]

    def files(self) -> Files:
        def find() -> list[pathlib.Path]:
            record, folder = self.record, pathlib.Path(self.dir)
            return sorted({path for part in ("train", "test") for path in record.files(folder, part)})

        return found_below(self.dir, find)

    def empty(self, workdir: pathlib.Path) -> Any:
        return self.random(0)

    def random(self, number: int) -> Any:
        """A source of `number` images with random pixels and random labels."""
        rng, classes = np.random.default_rng(0), len(self.classes)
        images = rng.integers(0, 256, (number, *self.shape), np.uint8)
        return self.lay_out(ImageSet(images, rng.integers(0, classes, number), classes))


@dataclasses.dataclass(frozen=True)
class Images(LabelledImages):
    """Images on a grid.

    Attributes:
      layout: "2d", or "3d" for clips; "1d": the row-major sequence of pixels.
      pool: the factor by which height and width are mean-pooled.
      name, dir, download, scene, validation, validation_limit: see `LabelledImages`.
    """

    layout: Literal["1d", "2d", "3d"] = "2d"
    pool: int = 1

    def lay_out(self, images: ImageSet) -> GridImages:
        """The source of the given images on a grid."""
        return GridImages(images, self.layout, self.pool)


@dataclasses.dataclass(frozen=True)
class PointClouds(LabelledImages):
    """Images as clouds of points, which are their brightest pixels.

    Attributes:
      num_points: the largest number of points of an image.
      name, dir, download, scene, validation, validation_limit: see `LabelledImages`.
    """

    num_points: int = 128

    def lay_out(self, images: ImageSet) -> Points:
        """The source of the given images as points."""
        return Points(images, self.num_points)
