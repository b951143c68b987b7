"""scikit-learn's handwritten digits: 1,797 real images of 8 x 8 pixels, in the package's dependencies."""

import numpy as np

from posattn_jax.data.images import ImageSet


def load() -> ImageSet:
    """All images; the set has no split of its own."""
    from sklearn.datasets import load_digits  # takes seconds, and most runs read other data

    digits = load_digits()
    images = digits.images.astype(np.uint8)[..., None]
    return ImageSet(images, digits.target.astype(np.int64), num_classes=10, max_value=16)
