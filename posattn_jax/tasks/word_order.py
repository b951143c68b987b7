"""Self-supervised learning: is a sentence as written, were two neighbouring words swapped, or is it shuffled?"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax

from posattn_jax.axes import Array, Int
from posattn_jax.models.bert import Bert, SequenceClassifier
from posattn_jax.tasks.blocks import SequenceTask
from posattn_jax.tasks.task import FROM_DATA, Params, Totals


@dataclasses.dataclass(frozen=True, kw_only=True)
class WordOrder(SequenceTask):
    """Cross-entropy of three classes: a sentence as written, with two neighbouring words swapped, and shuffled.

    A batch of b sentences becomes one of 3 b, each sentence in all three ways. All three have the same tokens, so a
    model without positions predicts the same for each, and its accuracy is 1/3.

      loss = mean over sentences and ways k of -log p(k | the sentence in way k)

    Training draws swaps and orders anew in each update. Every evaluation uses the same ones. The last word keeps its
    place, because its full stop would show whether it was moved.

      swapped: one pair of neighbours that are different words, all such pairs with the same probability;
      shuffled: one of all orders, drawn again if the result is the sentence as written, or within one swap of it

    Attributes:
      pretrained: the folder of a run whose encoder this run starts with. "{seed}" in it is replaced by this run's
        seed. The head is initialised anew.
      model, input_shape, pad_id: see `SequenceTask`.
    """

    score: ClassVar[str] = "accuracy"
    unit: ClassVar[str] = "sentences"
    classes: ClassVar[tuple[str, ...]] = ("as written", "swapped", "shuffled")

    model: SequenceClassifier = dataclasses.field(metadata=FROM_DATA)
    pretrained: str = ""

    @classmethod
    def around(cls, model: Bert, knows: Mapping[str, Any]) -> SequenceClassifier:
        return SequenceClassifier(model, len(cls.classes))

    def all_ways(self, rng: Array, batch: dict[str, Array]) -> dict[str, Array]:
        """The sentences of a batch of `loss` in all ways: {"tokens", "segments" [3b t], "targets", "weights" [3b]}.

        The draws depend on `rng` and on a sentence's id only, not on the batch that the sentence is in.
        """
        tokens = batch["tokens"]
        ways = jax.vmap(lambda number, *given: in_all_ways(jax.random.fold_in(rng, number), *given))
        num_ways, num_sentences = len(self.classes), len(tokens)
        return {
            "tokens": ways(batch["ids"], tokens, batch["words"]).reshape(num_ways * num_sentences, -1),
            "segments": jnp.repeat(batch["segments"], num_ways, axis=0),
            "targets": jnp.tile(jnp.arange(num_ways), num_sentences),
            "weights": jnp.repeat(batch.get("weights", jnp.ones(num_sentences)), num_ways),
        }

    def loss(self, params: Params, batch: dict[str, Array], rng: Array | None = None) -> tuple[Array, Totals]:
        """The loss of a batch {"tokens", "segments", "words" [b t], "ids" [b], optional "weights" [b]} and its totals.

        "words" numbers the words of a sentence from 1. Before the last word there are at least three different ones.
        Without `rng`, dropout is off, and the draws depend on the id only. Totals can be added over batches.
        """
        order_rng, dropout_rng = (jax.random.key(0), None) if rng is None else jax.random.split(rng)
        ways = self.all_ways(order_rng, batch)
        logits, intermediates = self.apply(params, ways, dropout_rng)
        targets, weights = ways["targets"], ways["weights"]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
        correct = weights * (jnp.argmax(logits, -1) == targets)
        totals = {
            "loss": jnp.sum(weights * losses),
            "correct": correct.reshape(-1, len(self.classes)).sum(0),
            "count": jnp.sum(weights),
        }
        return totals["loss"] / totals["count"] + self.penalty_of(intermediates), totals

    def zero_totals(self) -> Totals:
        """The totals of no examples. "correct" is counted per class."""
        return super().zero_totals() | {"correct": jnp.zeros(len(self.classes))}

    def summarise(self, totals: Mapping[str, Any]) -> dict[str, float]:
        """Mean cross-entropy, accuracy, and the accuracy of each class, "accuracy_as_written", ..."""
        count, correct = float(totals["count"]), [float(each) for each in totals["correct"]]
        figures = {"loss": float(totals["loss"]) / count, "accuracy": sum(correct) / count}
        for name, each in zip(self.classes, correct, strict=True):
            figures[f"accuracy_{name.replace(' ', '_')}"] = each / (count / len(self.classes))
        return figures


def in_all_ways(rng: Array, tokens: Int[Array, " t"], words: Int[Array, " t"]) -> Int[Array, "3 t"]:
    """A sentence as written, with two neighbouring words swapped, and shuffled: see `WordOrder`.

    Words are numbered from 1. Tokens with number 0, or with that of the last word, keep their places.
    """
    swap_rng, shuffle_rng = jax.random.split(rng)
    swaps = _all_swaps(tokens, words)
    differs = jnp.any(swaps != tokens, axis=1)
    swapped = swaps[jax.random.categorical(swap_rng, jnp.where(differs, 0.0, -jnp.inf))]
    return jnp.stack([tokens, swapped, _shuffled(shuffle_rng, tokens, words, swaps)])


def _arranged(tokens: Int[Array, " t"], words: Int[Array, " t"], places: Array) -> Int[Array, " t"]:
    """The tokens sorted by the `places` [t] of their words; `places` is indexed by word. A word stays together."""
    return tokens[jnp.argsort(places[words], stable=True)]


def _all_swaps(tokens: Int[Array, " t"], words: Int[Array, " t"]) -> Int[Array, "m t"]:
    """The tokens with words i and i + 1 swapped, for every i; unchanged if one of the two must keep its place."""
    numbers = jnp.arange(len(tokens))

    def swap(i: Array) -> Array:
        return _arranged(tokens, words, numbers + 1.5 * ((numbers == i) & (i + 1 < words[-1])))

    return jax.vmap(swap)(numbers[1:-1])


def _shuffled(
    rng: Array, tokens: Int[Array, " t"], words: Int[Array, " t"], swaps: Int[Array, "m t"]
) -> Int[Array, " t"]:
    """The tokens in a random order that is not theirs nor one of `swaps`. At least half of all orders qualify."""
    numbers, near = jnp.arange(len(tokens)), jnp.concatenate([tokens[None], swaps])

    def is_near(drawn: tuple[Array, Array]) -> Array:
        return jnp.any(jnp.all(drawn[1] == near, axis=1))

    def draw(drawn: tuple[Array, Array]) -> tuple[Array, Array]:
        following, own = jax.random.split(drawn[0])
        places = jax.random.uniform(own, (len(tokens),))
        places = jnp.where(numbers == 0, -1.0, jnp.where(numbers < words[-1], places, 1.0))
        return following, _arranged(tokens, words, places)

    return jax.lax.while_loop(is_near, draw, (rng, tokens))[1]
