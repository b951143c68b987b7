"""Causal language modelling: the loss and the metrics."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax.numpy as jnp

from posattn_jax.axes import Array, Shape, Sizes
from posattn_jax.models.language_model import LanguageModel
from posattn_jax.nn.blocks import EncoderBlock
from posattn_jax.tasks.blocks import BlockTask
from posattn_jax.tasks.task import FROM_DATA, Params, Totals, cross_entropy, means


@dataclasses.dataclass(frozen=True, kw_only=True)
class CausalLanguageModelling(BlockTask):
    """Cross-entropy of every token given the tokens before it, in natural logarithms and in bits.

      loss = mean over tokens of -log p(token);  bits = loss / ln 2

    For bytes of English text, these are nearly bits per character. The first token is an input, and is not predicted.

    Attributes:
      model: the model.
      input_shape: (t,), the length of the sequences.
    """

    score: ClassVar[str] = "accuracy"
    unit: ClassVar[str] = "sequences"
    models: ClassVar[tuple[type, ...]] = (LanguageModel,)

    model: LanguageModel = dataclasses.field(metadata=FROM_DATA)
    input_shape: Shape = dataclasses.field(metadata=FROM_DATA)

    @property
    def grid_shape(self) -> Sizes:
        """(t,)."""
        return tuple(self.input_shape)

    @property
    def blocks(self) -> Sequence[EncoderBlock]:
        return self.model.blocks

    def init(self, rng: Array) -> Params:
        return self.model.init(rng, self._some, span_bounds=self.whole(self.grid_shape))["params"]

    def describe(self, params: Params) -> Any:
        bounds = self.whole(self.grid_shape)
        fields = {"span_bounds": bounds, "return_intermediates": True}
        return self.model.apply({"params": params}, self._some, **fields)[1]

    @property
    def _some(self) -> Array:
        return jnp.zeros((1, *self.input_shape), jnp.int32)

    def apply(self, params: Params, batch: dict[str, Array], rng: Array | None = None) -> tuple[Array, dict[str, Any]]:
        """Logits [b t v] and intermediates for a batch's "tokens". Without `rng`, dropout is off."""
        return self._applied(params, rng, batch["tokens"])

    def loss(self, params: Params, batch: dict[str, Array], rng: Array | None = None) -> tuple[Array, Totals]:
        """The loss of a batch {"tokens", "targets" [b t], optional "weights" [b]}, and its totals: see `summarise`."""
        logits, intermediates = self.apply(params, batch, rng)
        targets = batch["targets"]
        weights = jnp.broadcast_to(batch.get("weights", jnp.ones(len(targets)))[:, None], targets.shape)
        totals = cross_entropy(logits, targets, weights)
        return totals["loss"] / totals["count"] + self.penalty_of(intermediates), totals

    @staticmethod
    def summarise(totals: Mapping[str, Any]) -> dict[str, float]:
        """Mean cross-entropy, bits and accuracy of the tokens in the totals; all 0 without tokens."""
        loss, accuracy = means(totals).values()
        return {"loss": loss, "bits": loss / math.log(2), "accuracy": accuracy}
