"""Labelled images and clips as batches of numpy arrays: on a grid, or as points."""

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
      images: [n, *sides, channels], with values up to `max_value`. The sides are height and width, in clips preceded by
        frames. A numpy array of unsigned integers or floats, or an object that becomes one when it is read: see
        `MovingDigits`.
      labels: [n] integers from 0 to num_classes - 1.
      num_classes: the number of classes.
      max_value: the value of white; None: the values are floats, which the model gets unchanged.
    """

    images: Any
    labels: np.ndarray
    num_classes: int
    max_value: int | None = 255

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def are_pictures(self) -> bool:
        """Whether the images can be shown, and read from image files."""
        _, *sides, channels = self.images.shape
        return len(sides) == 2 and channels in (1, 3) and self.max_value is not None

    def select(self, ids: np.ndarray | slice) -> "ImageSet":
        """The images with these ids, in this order."""
        return dataclasses.replace(self, images=self.images[ids], labels=self.labels[ids])


class ImageRecord:
    """The description of a set of images. Subclasses are dataclasses.

    Attributes:
      sides: the height and width of an image, in clips preceded by the number of frames.
      channels: the channels of a pixel.
      names: the names of the labels, in order.
    """

    sides: tuple[Any, ...]
    channels: int
    names: tuple[str, ...]

    def load(self, folder: pathlib.Path, split: Split, download: bool = False) -> ImageSet | None:
        """Reads one part of the official split; None if the set does not have this part.

        Args:
          folder: the folder of the set's files.
          split: the part.
          download: whether to download missing official files into `folder`.

        Raises:
          InputError: a file is missing, damaged or of another kind. The message says what and where.
        """
        raise NotImplementedError

    def files(self, folder: pathlib.Path, split: Split) -> list[pathlib.Path]:
        """The files in a folder that `load` reads, as far as they exist."""
        return []


@dataclasses.dataclass(frozen=True)
class GridImages:
    """Images on a grid, as inputs of a model: mean-pooled pixels x from 0 to 1, as (x - mean) / deviation.

    Attributes:
      images: the images.
      layout: "1d" (the row-major sequence of pixels), "2d" for images, or "3d" for clips.
      pool: the integer factor by which the last two sides, height and width, are mean-pooled first.
      mean, deviation: one per channel, or one for all.
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
        """S, the grid of the positions of a batch."""
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
        """The size of `table`."""
        return len(self) * sum(array.nbytes for array in self._rows(np.arange(1)).values())

    def table(self) -> dict[str, np.ndarray]:
        """All images, as they are stored, and their labels."""
        return self._rows(slice(None))

    def pixels(self, ids: np.ndarray) -> np.ndarray:
        """[b, *sides, channels] float32 in [0, 1], pooled."""
        return self._pooled(self._rows(ids)["images"])

    def _pooled(self, images: Any) -> Any:
        """As `pixels`, for images [b, ...] as a numpy or a jax array."""
        pixels, sides = images.astype(np.float32), self._sides
        if self.images.max_value is not None:
            pixels = pixels / np.float32(self.images.max_value)
        cut = [size for side in sides[-2:] for size in (side, self.pool)]
        pooled = pixels.reshape(len(pixels), *sides[:-2], *cut, self.num_channels)
        return pooled.mean((-4, -2)[-len(cut) // 2 :], dtype=np.float32)

    def read(self, rows: dict[str, Any]) -> dict[str, Any]:
        """The batch {"inputs": [b, prod(S), channels], "labels": [b]} of some rows of the table."""
        inputs = self._pooled(rows["images"])
        if self.images.max_value is not None:
            inputs = (inputs - np.asarray(self.mean, np.float32)) / np.asarray(self.deviation, np.float32)
        shape = len(inputs), math.prod(self.grid_shape), self.num_channels
        return {"inputs": inputs.reshape(shape), "labels": rows["labels"]}

    def batch(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        """{"inputs": [b, prod(S), channels] float32, "labels": [b] int32} for the images with these ids."""
        return self.read(self._rows(ids))


@dataclasses.dataclass(frozen=True)
class Points:
    """The brightest pixels of each image, as points.

    Attributes:
      images: the images or clips, with one channel.
      num_points: n, the largest number of points of an example. If it has fewer, the remaining places are masked.
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
        """See `batches.Source`. The input shape is only the number of points, since a cloud has no grid."""
        known = {"input_shape": (self.num_points,), "num_channels": 1, "num_dims": len(self.images.images.shape) - 2}
        return known | {"num_classes": self.images.num_classes}

    @property
    def positions(self) -> np.ndarray:
        """The position of each pixel, row-major: [pixels, p] float32, linspace(-1, 1, size) along each side."""
        axes = [np.linspace(-1, 1, side, dtype=np.float32) for side in self.images.images.shape[1:-1]]
        return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))

    def batch(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        """The points of the images with these ids, the brightest first, and equally bright ones in row-major order.

        Returns:
          {"positions": [b, n, p] float32 in [-1, 1], rows before columns; "inputs": [b, n, 1] float32 in [0, 1], the
          brightness; "mask": [b, n] bool, True where there is a point; "labels": [b] int32}. Positions and inputs
          without a point are 0.
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
