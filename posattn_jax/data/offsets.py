"""The relative offsets of a grid, each with a vector to be fitted, as batches of numpy arrays."""

import dataclasses

import numpy as np

from posattn_jax.axes import Sizes


@dataclasses.dataclass(frozen=True)
class Offsets:
    """A relative encoding as examples, one an offset.

    Attributes:
      coordinates: the normalised offsets, row-major, [n, p] float32, n = prod(2 S - 1).
      targets: the rows of the encoding, [n, c] float32.
      grid_shape: S.
    """

    coordinates: np.ndarray
    targets: np.ndarray
    grid_shape: Sizes

    def __len__(self) -> int:
        return len(self.targets)

    def batch(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        """{"inputs": [b, p], "targets": [b, c]} of the offsets with these ids."""
        return {"inputs": self.coordinates[ids], "targets": self.targets[ids]}
