"""Image classification: the loss and the metrics."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax.numpy as jnp

from posattn_jax.axes import Array, Float, Shape, Sizes
from posattn_jax.models.classifier import Classifier
from posattn_jax.models.vit import VisionTransformer
from posattn_jax.nn.blocks import EncoderBlock
from posattn_jax.tasks.blocks import BlockTask
from posattn_jax.tasks.task import FROM_DATA, Params, Totals, cross_entropy, means


@dataclasses.dataclass(frozen=True)
class Classification(BlockTask):
    """Cross-entropy of a classifier's logits, and a penalty on its learned spans.

      loss = mean cross-entropy + span_penalty * mean over layers of the span's share of all pairs

    Attributes:
      model: the classifier.
      input_shape: the grid of the data; (n,) for n points.
      num_channels: the features of a position.
      reference_shape: the grid of the data that the model was trained on, if it is not `input_shape`.
      num_dims: p, for points that lie on no grid; 0: the data lie on a grid.
      pretrained: the folder of a run whose parameters this run starts with. "{seed}" in it is replaced by this run's
        seed. The head is initialised anew, unless it predicts the same labels of the same data set.
    """

    score: ClassVar[str] = "accuracy"  # the validation metric that chooses the best epoch
    unit: ClassVar[str] = "images"  # what the examples are
    models: ClassVar[tuple[type, ...]] = (Classifier, VisionTransformer)
    can_vmap_seeds: ClassVar[bool] = True

    model: Classifier | VisionTransformer = dataclasses.field(metadata=FROM_DATA)
    input_shape: Shape = dataclasses.field(metadata=FROM_DATA)
    num_channels: int = dataclasses.field(metadata=FROM_DATA)
    reference_shape: Shape | None = dataclasses.field(default=None, metadata=FROM_DATA)
    num_dims: int = dataclasses.field(default=0, metadata=FROM_DATA)
    pretrained: str = dataclasses.field(default="", kw_only=True)

    @property
    def grid_shape(self) -> Sizes:
        """The grid of the tokens, on which attention works."""
        return self.model.token_grid(self.input_shape)

    @property
    def blocks(self) -> Sequence[EncoderBlock]:
        """The blocks of the model."""
        return self.model.blocks

    @property
    def merges(self) -> bool:
        return not any(getattr(block.attention, "dropout_rate", 0) for block in self.blocks)  # that of weights

    @property
    def reference_grid(self) -> Sizes | None:
        return None if self.reference_shape is None else self.model.token_grid(self.reference_shape)

    def init(self, rng: Array) -> Params:
        shape = self.reference_shape or self.input_shape
        bounds = self.whole(self.model.token_grid(shape))
        return self.model.init(rng, **self._nothing(shape), span_bounds=bounds)["params"]

    def _nothing(self, shape: Shape) -> dict[str, Any]:
        """Inputs of this shape, all zeros."""
        inputs = {"inputs": jnp.zeros((1, math.prod(shape), self.num_channels)), "grid_shape": shape}
        return inputs | ({"positions": jnp.zeros((1, *shape, self.num_dims))} if self.num_dims else {})

    def apply(
        self, params: Params, batch: dict[str, Array], rng: Array | None = None, **inputs: Any
    ) -> tuple[Float[Array, "b k"], dict[str, Any]]:
        """Logits and intermediates for a batch's "inputs" and, for points, "positions" and "mask".

        Without `rng`, dropout is off.
        """
        inputs |= {"positions": batch["positions"], "key_mask": batch["mask"]} if self.num_dims else {}
        given = batch["inputs"], self.input_shape
        return self._applied(params, rng, *given, reference_shape=self.reference_shape, **inputs)

    def loss(self, params: Params, batch: dict[str, Array], rng: Array | None = None) -> tuple[Array, Totals]:
        """The loss of a batch {"inputs" [b t c], "labels" [b], optional "weights" [b]} and its totals.

        A batch of points also has "positions" [b t p] and "mask" [b t], which is True where there is a point. Without
        `rng`, dropout is off; with keys [m], each of m equal shares of the batch has its own. Totals can be added over
        batches: see `summarise`.
        """
        logits, intermediates = self.apply(params, batch, rng)
        weights = batch.get("weights", jnp.ones(len(logits)))
        totals = cross_entropy(logits, batch["labels"], weights)
        return totals["loss"] / totals["count"] + self.penalty_of(intermediates), totals

    @staticmethod
    def summarise(totals: Mapping[str, Any]) -> dict[str, float]:
        """Mean cross-entropy and accuracy of the examples in the totals."""
        return means(totals)

    def describe(self, params: Params) -> Any:
        _, intermediates = self.model.apply(
            {"params": params},
            **self._nothing(self.input_shape),
            reference_shape=self.reference_shape,
            span_bounds=self.whole(self.grid_shape),
            return_intermediates=True,
        )
        return intermediates
