"""Images as point clouds: where their ink is, and how bright, as batches of numpy arrays."""

import dataclasses
from typing import Any

import numpy as np

from posattn_jax.data.images import ImageSet
from posattn_jax.system.errors import InputError


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
    def grid_shape(self) -> tuple[int, ...]:
        """(n,): all that a cloud has of a grid is its number of points."""
        return (self.num_points,)

    @property
    def num_channels(self) -> int:
        """The features of a point."""
        return 1

    @property
    def num_dims(self) -> int:
        """p."""
        return len(self.images.images.shape) - 2

    @property
    def knows(self) -> dict[str, Any]:
        """See `batches.Source`."""
        known = {"input_shape": self.grid_shape, "num_channels": self.num_channels, "num_dims": self.num_dims}
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
        pixels = np.asarray(self.images.images[ids], np.float32).reshape(len(ids), -1) / self.images.max_value
        brightest = np.argsort(-pixels, axis=1, kind="stable")[:, : self.num_points]
        inputs = np.take_along_axis(pixels, brightest, axis=1)[..., None]
        mask = inputs > 0
        return {
            "positions": np.where(mask, self.positions[brightest], np.float32(0)),
            "inputs": inputs,
            "mask": mask[..., 0],
            "labels": self.images.labels[ids].astype(np.int32),
        }
