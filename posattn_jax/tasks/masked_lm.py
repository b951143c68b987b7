"""Masked language modelling: what a run optimises and reports."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax

from posattn_jax.axes import Array
from posattn_jax.models.bert import Bert, MaskedLanguageModel
from posattn_jax.tasks.masking import Masking
from posattn_jax.tasks.sequences import SequenceTask
from posattn_jax.tasks.task import FROM_DATA, Params, Totals


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedLanguageModelling(SequenceTask):
    """Cross-entropy of the tokens that are hidden from the model (Devlin 2019), in natural logarithms.

      loss = mean over hidden tokens of -log p(token);  perplexity = exp(loss)

    What is hidden is drawn anew in each update of training, and is the same in every evaluation.

    Attributes:
      vocabulary_size, num_special, mask_id: see `Masking`.
      mask_share: the probability of a token to be hidden.
      model, input_shape, pad_id, span_penalty, span_bounds: see `SequenceTask`.
    """

    score: ClassVar[str] = "accuracy"

    model: MaskedLanguageModel = dataclasses.field(metadata=FROM_DATA)
    vocabulary_size: int = dataclasses.field(metadata=FROM_DATA)
    num_special: int = dataclasses.field(metadata=FROM_DATA)
    mask_id: int = dataclasses.field(metadata=FROM_DATA)
    mask_share: float = 0.15

    def __post_init__(self):
        try:
            _ = self.masking
        except ValueError as error:
            raise ValueError(f"mask_{error}") from error

    @classmethod
    def around(cls, model: Bert, knows: Mapping[str, Any]) -> MaskedLanguageModel:
        """See `Task`."""
        return MaskedLanguageModel(model)

    @property
    def masking(self) -> Masking:
        """What is hidden."""
        return Masking(self.vocabulary_size, self.num_special, self.mask_id, self.mask_share)

    def loss(self, params: Params, batch: dict[str, Array], rng: Array | None = None) -> tuple[Array, Totals]:
        """The loss of a batch {"tokens", "segments" [b t], "ids" [b], optional "weights" [b]} and its totals.

        Without `rng` dropout is off, and what is hidden depends on the sequence's id alone. Totals add up over
        batches: see `summarise`.
        """
        mask_rng, dropout_rng = (jax.random.key(0), None) if rng is None else jax.random.split(rng)
        tokens = batch["tokens"]
        shown, places, told = self.masking(mask_rng, tokens, batch["ids"])
        logits, intermediates = self.apply(params, batch | {"tokens": shown}, dropout_rng, targets=places)
        targets = jnp.take_along_axis(tokens, places, axis=1)
        weights = told * batch.get("weights", jnp.ones(len(tokens)))[:, None]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
        correct = jnp.argmax(logits, -1) == targets
        totals = {"loss": jnp.sum(weights * losses), "correct": jnp.sum(weights * correct), "count": jnp.sum(weights)}
        return totals["loss"] / jnp.maximum(totals["count"], 1) + self.penalty_of(intermediates), totals

    @staticmethod
    def zero_totals() -> Totals:
        """The totals of no sequences."""
        return {"loss": jnp.zeros(()), "correct": jnp.zeros(()), "count": jnp.zeros(())}

    @staticmethod
    def summarise(totals: Mapping[str, Any]) -> dict[str, float]:
        """Mean cross-entropy, its perplexity, and accuracy of the hidden tokens in the totals; of none 0, 1 and 0."""
        loss, correct, count = (float(totals[name]) for name in ("loss", "correct", "count"))
        mean = loss / max(count, 1)
        return {"loss": mean, "accuracy": correct / max(count, 1), "perplexity": math.exp(min(mean, 700.0))}
