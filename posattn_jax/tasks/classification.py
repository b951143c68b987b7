"""Image classification: what a run optimises and reports."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
import optax

from posattn_jax.axes import Array, Shape, Sizes
from posattn_jax.models.classifier import Classifier
from posattn_jax.models.vit import VisionTransformer
from posattn_jax.ops.attention import score_share
from posattn_jax.ops.span import half_span, span_share, span_size

Params = Any
Totals = dict[str, Array]


@dataclasses.dataclass(frozen=True)
class Classification:
    """Cross-entropy of a classifier's logits, and a price on its learned spans.

      loss = mean cross-entropy + span_penalty * mean over layers of the span's share of the grid

    Attributes:
      model: the classifier.
      input_shape: the grid of the data; (n,) of n points.
      num_channels: the features of a position.
      reference_shape: the grid of the data the model was trained on, where `input_shape` is another.
      num_dims: p, of points that lie on no grid; 0: the data lies on one.
      span_penalty: the price of spans that cover everything; the paper has none.
      span_bounds: one a block, half-spans that its span does not exceed, for layouts of a static size; None: the cost
        follows the span at run time.
    """

    score: ClassVar[str] = "accuracy"  # of the validation metrics: by it the best epoch is chosen

    model: Classifier | VisionTransformer
    input_shape: Shape
    num_channels: int
    reference_shape: Shape | None = None
    num_dims: int = 0
    span_penalty: float = 0.0
    span_bounds: tuple[Shape, ...] | None = None

    @property
    def grid_shape(self) -> Sizes:
        """The grid that attention meets."""
        return self.model.token_grid(self.input_shape)

    @property
    def _reference_grid(self) -> Sizes | None:
        """The grid that attention met in training, where it was another."""
        return None if self.reference_shape is None else self.model.token_grid(self.reference_shape)

    def init(self, rng: Array) -> Params:
        """The parameters of a fresh model."""
        shape = self.reference_shape or self.input_shape
        return self.model.init(rng, **self._nothing(shape), span_bounds=self._whole(shape))["params"]

    def _nothing(self, shape: Shape) -> dict[str, Any]:
        """Inputs of this shape that say nothing."""
        inputs = {"inputs": jnp.zeros((1, math.prod(shape), self.num_channels)), "grid_shape": shape}
        return inputs | ({"positions": jnp.zeros((1, *shape, self.num_dims))} if self.num_dims else {})

    def _whole(self, shape: Shape) -> tuple[Shape, ...]:
        """Bounds that no span exceeds."""
        return (tuple(size - 1 for size in self.model.token_grid(shape)),) * len(self.model.blocks)

    def loss(self, params: Params, batch: dict[str, Array], rng: Array | None = None) -> tuple[Array, Totals]:
        """The loss of a batch {"inputs" [b t c], "labels" [b], optional "weights" [b]} and its totals.

        A batch of points has "positions" [b t p] and "mask" [b t], True where there is a point, too. Without `rng`
        dropout is off. Totals add up over batches: see `summarise`.
        """
        logits, made = self.model.apply(
            {"params": params},
            batch["inputs"],
            self.input_shape,
            **({"positions": batch["positions"], "key_mask": batch["mask"]} if self.num_dims else {}),
            reference_shape=self.reference_shape,
            span_bounds=self.span_bounds,
            deterministic=rng is None,
            rngs=None if rng is None else {"dropout": rng},
        )
        weights = batch.get("weights", jnp.ones(len(logits)))
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"])
        correct = jnp.argmax(logits, -1) == batch["labels"]
        count = jnp.sum(weights)
        totals = {"loss": jnp.sum(weights * losses), "correct": jnp.sum(weights * correct), "count": count}
        loss = totals["loss"] / count
        if self.span_penalty:
            loss += self.span_penalty * self._span_share(made)
        return loss, totals

    def _span_share(self, made: dict[str, dict[str, Array]]) -> Array:
        layers = zip(self.model.blocks, made.values(), strict=True)
        shares = [span_share(out["sigma"], block.attention.span.threshold) for block, out in layers if "sigma" in out]
        if not shares:
            raise ValueError(f"span_penalty={self.span_penalty}: the model has no span to price")
        return jnp.mean(jnp.stack(shares))

    @staticmethod
    def zero_totals() -> Totals:
        """The totals of no examples."""
        return {"loss": jnp.zeros(()), "correct": jnp.zeros(()), "count": jnp.zeros(())}

    @staticmethod
    def summarise(totals: Mapping[str, Any]) -> dict[str, float]:
        """Mean cross-entropy and accuracy of the examples in the totals."""
        count = float(totals["count"])
        return {"loss": float(totals["loss"]) / count, "accuracy": float(totals["correct"]) / count}

    def describe(self, params: Params) -> Any:
        """What each block made of the grid: "relative_encoding" [*R, h, d] and "sigma", as far as it has them."""
        _, made = self.model.apply(
            {"params": params},
            **self._nothing(self.input_shape),
            reference_shape=self.reference_shape,
            span_bounds=self._whole(self.input_shape),  # the encodings also where no span reaches
        )
        return made

    def within(self, span_bounds: tuple[Shape, ...]) -> "Classification":
        """The same task, its layouts made for spans that do not exceed the bounds."""
        return dataclasses.replace(self, span_bounds=span_bounds)

    def half_spans(self, params: Params) -> list[Array]:
        """How far each block's queries see: [p] a block, the largest of its heads."""
        made, everything = self.describe(params), jnp.subtract(jnp.asarray(self.grid_shape), 1.0)
        halves = []
        for block, out in zip(self.model.blocks, made.values(), strict=True):
            half = everything
            if "sigma" in out:
                half = half_span(out["sigma"], block.attention.span.threshold, self.grid_shape, self._reference_grid)
            halves.append(half.reshape(-1, len(self.grid_shape)).max(0))
        return halves

    def spans(self, made: dict[str, dict[str, Any]], batch_size: int = 1) -> dict[str, dict[str, list]]:
        """Per block with a span, as lists: "sigma", "size" (the positions it covers) and "score_share".

        The last is the share of all scores that the block computes, one a head where each has its own span.
        """
        spans = {}
        for i, block in enumerate(self.model.blocks):
            if "sigma" in made[f"block_{i}"]:
                sigma = jnp.asarray(made[f"block_{i}"]["sigma"])
                size = span_size(sigma, block.attention.span.threshold, self.grid_shape, self._reference_grid)
                bound = None if self.span_bounds is None else self.span_bounds[i]
                shares = [
                    score_share(
                        self.grid_shape,
                        tuple((extent - 1) // 2 for extent in each),
                        span_bound=bound,
                        batch_size=batch_size,
                        num_heads=block.attention.num_heads,
                        implementation=block.attention.implementation,
                    )
                    for each in np.atleast_2d(size).tolist()
                ]
                spans[f"block_{i}"] = {"sigma": sigma.tolist(), "size": size.tolist(), "score_share": shares}
        return spans
