"""Self-supervised learning: by how much is an image rotated (Gidaris, Singh and Komodakis 2018, RotNet)?"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax.numpy as jnp

from posattn_jax.axes import Array
from posattn_jax.tasks.classification import Classification
from posattn_jax.tasks.task import Params, Totals


@dataclasses.dataclass(frozen=True)
class Rotation(Classification):
    """Classification of images that are rotated by 0, 90, 180 and 270 degrees: label k is k quarter turns.

    A batch of b images becomes one of 4 b, each image in all four rotations. The labels of the data are not used.

      loss = mean over images and k of -log p(k | image turned k times) + the penalty of `Classification`

    Raises:
      ValueError: the images are not square, or not on a grid of two dimensions.
    """

    classes: ClassVar[tuple[str, ...]] = ("0 degrees", "90 degrees", "180 degrees", "270 degrees")

    def __post_init__(self):
        super().__post_init__()
        if len(self.input_shape) != 2 or self.input_shape[0] != self.input_shape[1]:
            raise ValueError(f"input_shape={tuple(self.input_shape)}: expected square images, which can be turned")

    @classmethod
    def around(cls, model: Any, knows: Mapping[str, Any]) -> Any:
        """The model with four classes, however many the data have."""
        return model.clone(num_classes=len(cls.classes))

    def turned(self, batch: dict[str, Array]) -> dict[str, Array]:
        """All four rotations {"inputs" [4b t c], "labels" [4b], "weights" [4b]} of a batch of images [b t c]."""
        inputs = batch["inputs"]
        images = inputs.reshape(len(inputs), *self.input_shape, -1)
        all_ways = jnp.stack([jnp.rot90(images, k, axes=(1, 2)) for k in range(4)], axis=1)
        return {
            "inputs": all_ways.reshape(4 * len(inputs), *inputs.shape[1:]),
            "labels": jnp.tile(jnp.arange(4), len(inputs)),
            "weights": jnp.repeat(batch.get("weights", jnp.ones(len(inputs))), 4),
        }

    def loss(self, params: Params, batch: dict[str, Array], rng: Array | None = None) -> tuple[Array, Totals]:
        """The loss and totals, as `Classification` has them, of a batch {"inputs" [b t c], optional "weights" [b]}."""
        return super().loss(params, self.turned(batch), rng)
