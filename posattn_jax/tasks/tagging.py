"""A tag for every word of a sentence, such as its part of speech: the loss, accuracies, and the F1 of spans."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax

from posattn_jax.axes import Array, Bool, Int
from posattn_jax.models.bert import Bert, TokenClassifier
from posattn_jax.tasks.blocks import SequenceTask
from posattn_jax.tasks.task import FROM_DATA, Params, Totals


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tagging(SequenceTask):
    """Cross-entropy of each word's tag, which is predicted at the word's first piece (Devlin 2019, section 5.3).

      loss = mean over words of -log p(tag of the word | the sentence)

    If all tags are O, B-... and I-..., "f1" is that of the spans that these mark: a span is right if its type and both
    of its ends are (Tjong Kim Sang and Buchholz 2000).

    Attributes:
      names: the names of the tags, in order.
      pretrained: the folder of a run whose encoder this run starts with. "{seed}" in it is replaced by this run's
        seed. The head is initialised anew.
      model, input_shape, pad_id: see `SequenceTask`.
    """

    score: ClassVar[str] = "accuracy"
    unit: ClassVar[str] = "sentences"

    model: TokenClassifier = dataclasses.field(metadata=FROM_DATA)
    names: tuple[str, ...] = dataclasses.field(metadata=FROM_DATA)
    pretrained: str = ""

    @classmethod
    def around(cls, model: Bert, knows: Mapping[str, Any]) -> TokenClassifier:
        return TokenClassifier(model, len(knows["names"]))

    def loss(self, params: Params, batch: dict[str, Array], rng: Array | None = None) -> tuple[Array, Totals]:
        """The loss of a batch {"tokens", "segments", "targets" [b t], optional "weights" [b]} and its totals.

        Targets are indices of tags, and -1 at tokens that begin no word. Without `rng`, dropout is off. Totals can be
        added over batches.
        """
        logits, intermediates = self.apply(params, batch, rng)
        begins_word, tags = batch["targets"] >= 0, jnp.maximum(batch["targets"], 0)
        weights = begins_word * batch.get("weights", jnp.ones(len(logits)))[:, None]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, tags)
        predictions = jnp.argmax(logits, -1)
        of_tag = jax.nn.one_hot(tags, len(self.names)) * weights[..., None]
        totals = {
            "loss": jnp.sum(weights * losses),
            "correct": jnp.sum(of_tag * (predictions == tags)[..., None], (0, 1)),
            "count": jnp.sum(of_tag, (0, 1)),
        }
        if self._kinds is not None:
            right, ours, theirs = self._spans(predictions, tags, begins_word)
            totals |= {"spans": jnp.stack([jnp.sum(weights * each) for each in (right, ours, theirs)])}
        return totals["loss"] / jnp.maximum(jnp.sum(weights), 1) + self.penalty_of(intermediates), totals

    def zero_totals(self) -> Totals:
        """The totals of no examples. "correct" and "count" are counted per tag."""
        nothing = {"loss": jnp.zeros(()), **dict.fromkeys(("correct", "count"), jnp.zeros(len(self.names)))}
        return nothing if self._kinds is None else nothing | {"spans": jnp.zeros(3)}

    def summarise(self, totals: Mapping[str, Any]) -> dict[str, float]:
        """Mean cross-entropy, accuracy, that of each tag that occurs, "accuracy_DET", ..., and "f1" of spans.

        Without words, all are 0.
        """
        correct, count = (np.asarray(totals[name], float) for name in ("correct", "count"))
        num_words = max(count.sum(), 1)
        figures = {"loss": float(totals["loss"]) / num_words, "accuracy": correct.sum() / num_words}
        for name, right, number in zip(self.names, correct, count, strict=True):
            if number:
                figures[f"accuracy_{name}"] = right / number
        if "spans" in totals:
            right, ours, theirs = np.asarray(totals["spans"], float)
            figures["f1"] = 2 * right / max(1.0, ours + theirs)
        return {name: float(value) for name, value in figures.items()}

    @property
    def _kinds(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Whether each tag begins a span, and the number of its type, 0 for O; None: tags do not mark spans."""
        if not all(name == "O" or name[:2] in ("B-", "I-") for name in self.names):
            return None
        types = sorted({name[2:] for name in self.names if name != "O"})
        kinds = [0 if name == "O" else 1 + types.index(name[2:]) for name in self.names]
        return np.array([name.startswith("B-") for name in self.names]), np.array(kinds)

    def _spans(
        self, predictions: Int[Array, "b t"], tags: Int[Array, "b t"], begins_word: Bool[Array, "b t"]
    ) -> tuple[Array, Array, Array]:
        """[b t] where spans start: those that are right, those predicted, and those of the tags."""
        (ours, kind, end), (theirs, right_kind, right_end) = (
            self._marked(each, begins_word) for each in (predictions, tags)
        )
        return ours & theirs & (kind == right_kind) & (end == right_end), ours, theirs

    def _marked(
        self, tags: Int[Array, "b t"], begins_word: Bool[Array, "b t"]
    ) -> tuple[Bool[Array, "b t"], Int[Array, "b t"], Int[Array, "b t"]]:
        """Where spans start, the type of each word, and the place of the first word after the span of a word.

        A span also starts at I-X if the word before is in no span of the type X.
        """
        assert self._kinds is not None
        begins, kinds = map(jnp.asarray, self._kinds)
        length = tags.shape[1]
        places, nowhere = jnp.arange(length), jnp.full((len(tags), 1), -1)
        latest = jax.lax.cummax(jnp.where(begins_word, places, -1), axis=1)
        before = jnp.concatenate([nowhere, latest[:, :-1]], 1)
        kind = jnp.where(begins_word, kinds[tags], 0)
        kind_before = jnp.where(before < 0, 0, jnp.take_along_axis(kind, jnp.maximum(before, 0), 1))
        starts = (kind > 0) & (begins[tags] | (kind_before != kind))
        stops = jnp.where(begins_word & (starts | (kind == 0)), places, length)
        following = jax.lax.cummin(stops, axis=1, reverse=True)
        return starts, kind, jnp.concatenate([following[:, 1:], nowhere + 1 + length], 1)
