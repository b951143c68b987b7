"""Labelled images and clips, as batches of numpy arrays laid out on a grid."""

import dataclasses
import math
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from posattn_jax.system.errors import InputError


@runtime_checkable
class Pixels(Protocol):
    """A numpy array of unsigned integers, or what becomes one when it is asked for: see `MovingDigits`."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, ids, /) -> "Pixels": ...

    def __array__(self, dtype=None, copy=None, /) -> np.ndarray: ...


@dataclasses.dataclass(frozen=True)
class ImageSet:
    """Labelled images of one size.

    Attributes:
      images: [n, *sides, channels], up to `max_value`; the sides are height and width, before them frames in clips.
      labels: [n] integers from 0 to num_classes - 1.
      num_classes: how many labels there are.
      max_value: white.
    """

    images: Pixels
    labels: np.ndarray
    num_classes: int
    max_value: int = 255

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, ids: np.ndarray) -> "ImageSet":
        """The images with these ids, in this order."""
        return dataclasses.replace(self, images=self.images[ids], labels=self.labels[ids])


def split(images: ImageSet, seed: int, train_share: float = 0.8) -> tuple[ImageSet, ImageSet]:
    """Splits into train and validation by a permutation drawn from the seed (Alfons 2022, section 4.1: 40k / 10k)."""
    order = np.random.default_rng(seed).permutation(len(images))
    num_train = round(train_share * len(images))
    return images.select(order[:num_train]), images.select(order[num_train:])


@dataclasses.dataclass(frozen=True)
class GridImages:
    """Images as a model meets them: pixels (x - .5) / .5, mean-pooled, on a grid.

    Attributes:
      images: the images.
      layout: "1d" (the row-major sequence of pixels), "2d" of images, or "3d" of clips.
      pool: the integer factor by which height and width are mean-pooled first.
    """

    images: ImageSet
    layout: Literal["1d", "2d", "3d"] = "2d"
    pool: int = 1

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
        *frames, height, width = self.images.images.shape[1:-1]
        return (*frames, height // self.pool, width // self.pool)

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
        pixels = images.astype(np.float32) / np.float32(self.images.max_value)
        *frames, height, width = self._sides
        pooled = pixels.reshape(len(pixels), *frames, height, self.pool, width, self.pool, self.num_channels)
        return pooled.mean((-4, -2), dtype=np.float32)

    def read(self, rows: dict[str, Any]) -> dict[str, Any]:
        """A batch of some rows of the table: {"inputs": [b, prod(S), channels] in [-1, 1], "labels": [b]}."""
        inputs = (self._pooled(rows["images"]) - 0.5) / 0.5
        shape = len(inputs), math.prod(self.grid_shape), self.num_channels
        return {"inputs": inputs.reshape(shape), "labels": rows["labels"]}

    def batch(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        """{"inputs": [b, prod(S), channels] float32 in [-1, 1], "labels": [b] int32} of the images with these ids."""
        return self.read(self._rows(ids))
