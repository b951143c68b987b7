"""Labelled images and clips, as batches of numpy arrays: laid out on a grid, or as points."""

import dataclasses
import math
import pathlib
from typing import Any, Literal

import numpy as np

from posattn_jax.system.errors import InputError

Split = Literal["train", "test"]


@dataclasses.dataclass(frozen=True)
class ImageSet:
    """Labelled images of one size.

    Attributes:
      images: [n, *sides, channels], up to `max_value`; the sides are height and width, before them frames in clips. A
        numpy array of unsigned integers, or what becomes one when it is asked for: see `MovingDigits`.
      labels: [n] integers from 0 to num_classes - 1.
      num_classes: how many labels there are.
      max_value: white; None: the values are floats, which a model is given as they are.
    """

    images: Any
    labels: np.ndarray
    num_classes: int
    max_value: int | None = 255

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def are_pictures(self) -> bool:
        """Whether an image can be shown, and read of a file."""
        _, *sides, channels = self.images.shape
        return len(sides) == 2 and channels in (1, 3) and self.max_value is not None

    def select(self, ids: np.ndarray | slice) -> "ImageSet":
        """The images with these ids, in this order."""
        return dataclasses.replace(self, images=self.images[ids], labels=self.labels[ids])


class ImageRecord:
    """All there is to know of a set of images: a dataclass.

    Attributes:
      sides: height and width of an image, before them frames in clips.
      channels: of a pixel.
      names: of the labels, by number.
    """

    sides: tuple[Any, ...]
    channels: int
    names: tuple[str, ...]

    def load(self, folder: pathlib.Path, split: Split, download: bool = False) -> ImageSet | None:
        """One split, as the set's authors divide it; None where they do not.

        Args:
          folder: of the set's files.
          split: which.
          download: whether to fetch official files that are not found into `folder`.

        Raises:
          InputError: a file is missing, damaged or of another kind; the message says what and where.
        """
        raise NotImplementedError

    def files(self, folder: pathlib.Path, split: Split) -> list[pathlib.Path]:
        """What `load` reads of a folder, as far as it is there."""
        return []


@dataclasses.dataclass(frozen=True)
class GridImages:
    """Images as a model meets them: pixels (x - mean) / deviation, mean-pooled, on a grid.

    Attributes:
      images: the images.
      layout: "1d" (the row-major sequence of pixels), "2d" of images, or "3d" of clips.
      pool: the integer factor by which the last two sides, height and width, are mean-pooled first.
      mean, deviation: of each channel, or one of all; of pixels from 0 to 1.
    """

    images: ImageSet
    layout: Literal["1d", "2d", "3d"] = "2d"
    pool: int = 1
    mean: tuple[float, ...] = (0.5,)
    deviation: tuple[float, ...] = (0.5,)

    def __post_init__(self):
        sides = self.images.images.shape[1:-1]
        whole = f"{len(sides)}d"
        if self.layout not in ("1d", whole):
            raise InputError(f'data.layout="{self.layout}": expected "1d" or "{whole}" for images of {sides}')
        if self.pool < 1 or any(side % self.pool for side in sides[-2:]):
            raise InputError(f"data.pool={self.pool}: does not divide the image size {sides[-2:]}")

    def __len__(self) -> int:
        return len(self.images)

    @property
    def _sides(self) -> tuple[int, ...]:
        """The sides of a pooled image."""
        sides = self.images.images.shape[1:-1]
        return (*sides[:-2], *(side // self.pool for side in sides[-2:]))

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """S, the grid that the positions of a batch lie on."""
        return (math.prod(self._sides),) if self.layout == "1d" else self._sides

    @property
    def num_channels(self) -> int:
        """The features of a position."""
        return self.images.images.shape[-1]

    @property
    def knows(self) -> dict[str, Any]:
        """See `batches.Source`."""
        shape, channels = self.grid_shape, self.num_channels
        return {"input_shape": shape, "num_channels": channels, "num_classes": self.images.num_classes}

    def _rows(self, ids: Any) -> dict[str, np.ndarray]:
        return {"images": np.asarray(self.images.images[ids]), "labels": self.images.labels[ids].astype(np.int32)}

    @property
    def num_bytes(self) -> int:
        """Of `table`."""
        return len(self) * sum(array.nbytes for array in self._rows(np.arange(1)).values())

    def table(self) -> dict[str, np.ndarray]:
        """All images as they are stored, and their labels."""
        return self._rows(slice(None))

    def pixels(self, ids: np.ndarray) -> np.ndarray:
        """[b, *sides, channels] float32 in [0, 1], pooled."""
        return self._pooled(self._rows(ids)["images"])

    def _pooled(self, images: Any) -> Any:
        """As `pixels`, of images [b, ...] of numpy or of jax."""
        pixels, sides = images.astype(np.float32), self._sides
        if self.images.max_value is not None:
            pixels = pixels / np.float32(self.images.max_value)
        cut = [size for side in sides[-2:] for size in (side, self.pool)]
        pooled = pixels.reshape(len(pixels), *sides[:-2], *cut, self.num_channels)
        return pooled.mean((-4, -2)[-len(cut) // 2 :], dtype=np.float32)

    def read(self, rows: dict[str, Any]) -> dict[str, Any]:
        """A batch of some rows of the table: {"inputs": [b, prod(S), channels], "labels": [b]}."""
        inputs = self._pooled(rows["images"])
        if self.images.max_value is not None:
            inputs = (inputs - np.asarray(self.mean, np.float32)) / np.asarray(self.deviation, np.float32)
        shape = len(inputs), math.prod(self.grid_shape), self.num_channels
        return {"inputs": inputs.reshape(shape), "labels": rows["labels"]}

    def batch(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        """{"inputs": [b, prod(S), channels] float32, "labels": [b] int32} of the images with these ids."""
        return self.read(self._rows(ids))


@dataclasses.dataclass(frozen=True)
class Points:
    """The brightest pixels of each image, as points.

    Attributes:
      images: the images or clips, of one channel.
      num_points: n, how many points an example has at most; the places of those it lacks are masked.
    """

    images: ImageSet
    num_points: int = 128

    def __post_init__(self):
        *sides, channels = self.images.images.shape[1:]
        if channels != 1:
            raise InputError(f"data.kind=PointClouds: expected images of 1 channel, not {channels}")
        if not 1 <= self.num_points <= np.prod(sides):
            raise InputError(
                f"data.num_points={self.num_points}: expected 1 to {np.prod(sides)}, the pixels of an image"
            )

    def __len__(self) -> int:
        return len(self.images)

    @property
    def knows(self) -> dict[str, Any]:
        """See `batches.Source`; all that a cloud has of a grid is its number of points."""
        known = {"input_shape": (self.num_points,), "num_channels": 1, "num_dims": len(self.images.images.shape) - 2}
        return known | {"num_classes": self.images.num_classes}

    @property
    def positions(self) -> np.ndarray:
        """Where each pixel lies, row-major: [pixels, p] float32, linspace(-1, 1, size) along each side."""
        axes = [np.linspace(-1, 1, side, dtype=np.float32) for side in self.images.images.shape[1:-1]]
        return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))

    def batch(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        """The points of the images with these ids, the brightest first and row-major among equals.

        Returns:
          {"positions": [b, n, p] float32 in [-1, 1], rows before columns; "inputs": [b, n, 1] float32 in [0, 1], the
          brightness; "mask": [b, n] bool, True where there is a point, elsewhere all is 0; "labels": [b] int32}.
        """
        pixels = np.asarray(self.images.images[ids], np.float32).reshape(len(ids), -1) / (self.images.max_value or 1)
        brightest = np.argsort(-pixels, axis=1, kind="stable")[:, : self.num_points]
        inputs = np.take_along_axis(pixels, brightest, axis=1)[..., None]
        mask = inputs > 0
        return {
            "positions": np.where(mask, self.positions[brightest], np.float32(0)),
            "inputs": inputs,
            "mask": mask[..., 0],
            "labels": self.images.labels[ids].astype(np.int32),
        }
