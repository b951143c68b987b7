"""scikit-learn's handwritten digits: 1,797 real images of 8 x 8 pixels, in the package's dependencies."""

import dataclasses
import pathlib

import numpy as np

from posattn_jax.data.images import ImageSet


@dataclasses.dataclass(frozen=True)
class Digits:
    """The set, as an `image_sets.ImageRecord`; it has no split of its own, and no files."""

    sides: tuple[int, ...] = (8, 8)
    channels: int = 1
    names: tuple[str, ...] = tuple("0123456789")

    def load(self, folder: pathlib.Path, split: str, download: bool = False) -> ImageSet | None:
        """All images, which are "train"; there is no other part."""
        if split != "train":
            return None
        from sklearn.datasets import load_digits  # takes seconds, and most runs read other data

        digits = load_digits()
        images = digits.images.astype(np.uint8)[..., None]
        return ImageSet(images, digits.target.astype(np.int64), num_classes=10, max_value=16)

    def files(self, folder: pathlib.Path, split: str) -> list[pathlib.Path]:
        """None."""
        return []


SETS = {"digits": Digits()}
