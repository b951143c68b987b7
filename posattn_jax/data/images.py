"""Labelled images in memory, as batches of numpy arrays laid out on a grid."""

import dataclasses
import math
from typing import Literal

import numpy as np

from posattn_jax.errors import InputError


@dataclasses.dataclass(frozen=True)
class ImageSet:
    """Images [n, height, width, channels] of unsigned integers up to `max_value`, and their labels [n]."""

    images: np.ndarray
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
    """Images as a model meets them: pixels (x - .5) / .5, mean-pooled, on a 1-D or 2-D grid.

    Attributes:
      images: the images.
      layout: "1d" (the row-major sequence of pixels) or "2d".
      pool: the integer factor by which each side is mean-pooled first.
    """

    images: ImageSet
    layout: Literal["1d", "2d"] = "2d"
    pool: int = 1

    def __post_init__(self):
        if self.layout not in ("1d", "2d"):
            raise InputError(f'data.layout="{self.layout}": expected "1d" or "2d"')
        sides = self.images.images.shape[1:3]
        if self.pool < 1 or any(side % self.pool for side in sides):
            raise InputError(f"data.pool={self.pool}: does not divide the image size {sides}")

    def __len__(self) -> int:
        return len(self.images)

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """S, the grid that the positions of a batch lie on."""
        height, width = (side // self.pool for side in self.images.images.shape[1:3])
        return (height, width) if self.layout == "2d" else (height * width,)

    @property
    def num_channels(self) -> int:
        """The features of a position."""
        return self.images.images.shape[-1]

    def pixels(self, ids: np.ndarray) -> np.ndarray:
        """[b, height, width, channels] float32 in [0, 1], pooled."""
        pixels = self.images.images[ids].astype(np.float32) / self.images.max_value
        b, height, width, channels = pixels.shape
        pooled = pixels.reshape(b, height // self.pool, self.pool, width // self.pool, self.pool, channels)
        return pooled.mean((2, 4), dtype=np.float32)

    def batch(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        """{"inputs": [b, prod(S), channels] float32 in [-1, 1], "labels": [b] int32} of the images with these ids."""
        inputs = (self.pixels(ids) - 0.5) / 0.5
        return {
            "inputs": inputs.reshape(len(inputs), math.prod(self.grid_shape), self.num_channels),
            "labels": self.images.labels[ids].astype(np.int32),
        }
