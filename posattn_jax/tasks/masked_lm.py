"""Masked language modelling: what a run optimises and reports."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax
import scipy  # loads its stats once they are needed

from posattn_jax.axes import Array, Bool, Int
from posattn_jax.models.bert import Bert, MaskedLanguageModel
from posattn_jax.tasks.blocks import SequenceTask
from posattn_jax.tasks.task import FROM_DATA, Params, Totals


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedLanguageModelling(SequenceTask):
    """Cross-entropy of the tokens that are hidden from the model (Devlin 2019), in natural logarithms.

      loss = mean over hidden tokens of -log p(token);  perplexity = exp(loss)

    What is hidden is drawn anew in each update of training (Devlin 2019; the code of Chang 2021), and is the same in
    every evaluation:

      each token that is not special is drawn with probability mask_share, whatever the others are (Bernoulli);
      each of these becomes `mask_id` with probability .8, any token that is not special with .1, and stays with .1

    Attributes:
      vocabulary_size: how many token ids there are.
      num_special: the ids below are special: they are neither drawn nor put where others stood.
      mask_id: of the special token that hides one.
      mask_share: the probability of a token to be drawn.
      model, input_shape, pad_id: see `SequenceTask`.
    """

    score: ClassVar[str] = "accuracy"

    model: MaskedLanguageModel = dataclasses.field(metadata=FROM_DATA)
    vocabulary_size: int = dataclasses.field(metadata=FROM_DATA)
    num_special: int = dataclasses.field(metadata=FROM_DATA)
    mask_id: int = dataclasses.field(metadata=FROM_DATA)
    mask_share: float = 0.15

    def __post_init__(self):
        super().__post_init__()
        if not 0 < self.mask_share <= 1:
            raise ValueError(f"mask_share={self.mask_share}: expected more than 0 and at most 1")

    @classmethod
    def around(cls, model: Bert, knows: Mapping[str, Any]) -> MaskedLanguageModel:
        return MaskedLanguageModel(model)

    def most(self, length: int) -> int:
        """How many drawn tokens there is room for: arrays have static shapes.

        More are drawn with a probability of at most 1e-9, of Binomial(length, mask_share); they stay as they are.
        """
        return int(scipy.stats.binom.isf(1e-9, length, self.mask_share))

    def hide(
        self, rng: Array, tokens: Int[Array, "b t"], ids: Int[Array, " b"]
    ) -> tuple[Int[Array, "b t"], Int[Array, "b m"], Bool[Array, "b m"]]:
        """Hides tokens.

        Args:
          rng: with it and a sequence's id the draw is made: it is the same in whatever batch the sequence is.
          tokens: ids [b t].
          ids: of the sequences.

        Returns:
          The tokens that are shown, the places of those to be told, and which of these places are: sequences differ
          in how many, and may have none.
        """
        length = tokens.shape[1]
        draw = jax.vmap(lambda each: jax.random.uniform(jax.random.fold_in(rng, each), (3, length)))
        chance, kind, other = jnp.moveaxis(draw(ids), 1, 0)
        drawn = (chance < self.mask_share) & (tokens >= self.num_special)
        _, targets = jax.lax.top_k(jnp.where(drawn, -chance, -1.0), self.most(length))
        told = jnp.take_along_axis(drawn, targets, axis=1)
        hidden = jnp.zeros(tokens.shape, bool).at[jnp.arange(len(tokens))[:, None], targets].set(told)
        others = self.num_special + (other * (self.vocabulary_size - self.num_special)).astype(tokens.dtype)
        shown = jnp.where(kind < 0.8, self.mask_id, jnp.where(kind < 0.9, others, tokens))
        return jnp.where(hidden, shown, tokens), targets, told

    def loss(self, params: Params, batch: dict[str, Array], rng: Array | None = None) -> tuple[Array, Totals]:
        """The loss of a batch {"tokens", "segments" [b t], "ids" [b], optional "weights" [b]} and its totals.

        Rows that several sequences share have "segment_ids" [b t], and one of "ids". Without `rng` dropout is off, and
        what is hidden depends on the sequence's id alone. Totals add up over batches: see `summarise`.
        """
        mask_rng, dropout_rng = (jax.random.key(0), None) if rng is None else jax.random.split(rng)
        tokens = batch["tokens"]
        shown, places, told = self.hide(mask_rng, tokens, batch["ids"])
        logits, intermediates = self.apply(params, batch | {"tokens": shown}, dropout_rng, targets=places)
        targets = jnp.take_along_axis(tokens, places, axis=1)
        weights = told * batch.get("weights", jnp.ones(len(tokens)))[:, None]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
        correct = jnp.argmax(logits, -1) == targets
        totals = {"loss": jnp.sum(weights * losses), "correct": jnp.sum(weights * correct), "count": jnp.sum(weights)}
        return totals["loss"] / jnp.maximum(totals["count"], 1) + self.penalty_of(intermediates), totals

    @staticmethod
    def summarise(totals: Mapping[str, Any]) -> dict[str, float]:
        """Mean cross-entropy, its perplexity, and accuracy of the hidden tokens in the totals; of none 0, 1 and 0."""
        loss, correct, count = (float(totals[name]) for name in ("loss", "correct", "count"))
        mean = loss / max(count, 1)
        return {"loss": mean, "accuracy": correct / max(count, 1), "perplexity": math.exp(min(mean, 700.0))}
