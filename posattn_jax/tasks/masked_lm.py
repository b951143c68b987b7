"""Masked language modelling: the loss and the metrics."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import scipy  # loads scipy.stats only when it is needed

from posattn_jax.axes import Array, Bool, Int
from posattn_jax.models.bert import Bert, MaskedLanguageModel
from posattn_jax.tasks.blocks import SequenceTask
from posattn_jax.tasks.task import FROM_DATA, Params, Totals, cross_entropy, means


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedLanguageModelling(SequenceTask):
    """Cross-entropy of the tokens that are hidden from the model (Devlin 2019), in natural logarithms.

      loss = mean over hidden tokens of -log p(token);  perplexity = exp(loss)

    Training chooses the hidden tokens anew in each update (Devlin 2019; the code of Chang 2021). Every evaluation hides
    the same ones. They are chosen as follows:

      each token that is not special is hidden with probability mask_share, independently of the others (Bernoulli);
      a hidden token is replaced by `mask_id` with probability .8, by a random token that is not special with .1, and
      is left as it is with .1

    Attributes:
      vocabulary_size: the number of token ids.
      num_special: ids below this number are special. They are not hidden, and replace no other token.
      mask_id: the id of the special token that replaces hidden tokens.
      mask_share: the probability that a token is hidden.
      pretrained: the folder of a run whose parameters this run starts with. "{seed}" in it is replaced by this run's
        seed. What the other run does not have is initialised anew.
      model, input_shape, pad_id: see `SequenceTask`.
    """

    score: ClassVar[str] = "accuracy"

    model: MaskedLanguageModel = dataclasses.field(metadata=FROM_DATA)
    vocabulary_size: int = dataclasses.field(metadata=FROM_DATA)
    num_special: int = dataclasses.field(metadata=FROM_DATA)
    mask_id: int = dataclasses.field(metadata=FROM_DATA)
    mask_share: float = 0.15
    pretrained: str = ""

    def __post_init__(self):
        super().__post_init__()
        if not 0 < self.mask_share <= 1:
            raise ValueError(f"mask_share={self.mask_share}: expected more than 0 and at most 1")
        if self.num_special >= self.vocabulary_size:
            raise ValueError(f"num_special={self.num_special}: expected fewer than all {self.vocabulary_size} tokens")

    @classmethod
    def around(cls, model: Bert, knows: Mapping[str, Any]) -> MaskedLanguageModel:
        return MaskedLanguageModel(model)

    def most(self, length: int) -> int:
        """The largest number of hidden tokens in a sequence, which static shapes need.

        More would be hidden with a probability of at most 1e-9, by Binomial(length, mask_share). These stay visible.
        """
        return int(scipy.stats.binom.isf(1e-9, length, self.mask_share))

    def hide(
        self, rng: Array, tokens: Int[Array, "b t"], ids: Int[Array, " b"]
    ) -> tuple[Int[Array, "b t"], Int[Array, "b m"], Bool[Array, "b m"]]:
        """Hides tokens.

        Args:
          rng: the key. The choice depends on it and on a sequence's id only, not on the batch that the sequence is in.
          tokens: the ids of the tokens [b t].
          ids: the ids of the sequences.

        Returns:
          The visible tokens [b t], the places of the hidden ones [b m], and which of these m places are valid [b m]:
          the number of hidden tokens differs between sequences, and may be 0.
        """
        length = tokens.shape[1]
        draw = jax.vmap(lambda each: jax.random.uniform(jax.random.fold_in(rng, each), (3, length)))
        chance, kind, other = jnp.moveaxis(draw(ids), 1, 0)
        drawn = (chance < self.mask_share) & (tokens >= self.num_special)
        _, targets = jax.lax.top_k(jnp.where(drawn, -chance, -1.0), self.most(length))
        are_valid = jnp.take_along_axis(drawn, targets, axis=1)
        hidden = jnp.zeros(tokens.shape, bool).at[jnp.arange(len(tokens))[:, None], targets].set(are_valid)
        others = self.num_special + (other * (self.vocabulary_size - self.num_special)).astype(tokens.dtype)
        shown = jnp.where(kind < 0.8, self.mask_id, jnp.where(kind < 0.9, others, tokens))
        return jnp.where(hidden, shown, tokens), targets, are_valid

    def loss(self, params: Params, batch: dict[str, Array], rng: Array | None = None) -> tuple[Array, Totals]:
        """The loss of a batch {"tokens", "segments" [b t], "ids" [b], optional "weights" [b]} and its totals.

        If several sequences share a row, the batch has "segment_ids" [b t], and a row has a single id. Without `rng`,
        dropout is off, and the hidden tokens depend on the id only. Totals can be added over batches: see `summarise`.
        """
        mask_rng, dropout_rng = (jax.random.key(0), None) if rng is None else jax.random.split(rng)
        tokens = batch["tokens"]
        shown, places, are_valid = self.hide(mask_rng, tokens, batch["ids"])
        logits, intermediates = self.apply(params, batch | {"tokens": shown}, dropout_rng, targets=places)
        targets = jnp.take_along_axis(tokens, places, axis=1)
        weights = are_valid * batch.get("weights", jnp.ones(len(tokens)))[:, None]
        totals = cross_entropy(logits, targets, weights)
        return totals["loss"] / jnp.maximum(totals["count"], 1) + self.penalty_of(intermediates), totals

    @staticmethod
    def summarise(totals: Mapping[str, Any]) -> dict[str, float]:
        """Mean cross-entropy, accuracy and perplexity of the hidden tokens in the totals; 0, 0 and 1 without any."""
        found = means(totals)
        return found | {"perplexity": math.exp(min(found["loss"], 700.0))}
