"""A label, or a number, of a sentence or of a pair of them, as GLUE asks for: what a run optimises and reports."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import jax.numpy as jnp
import numpy as np
import optax

from posattn_jax.axes import Array, Float, Shape
from posattn_jax.models.bert import SequenceClassifier
from posattn_jax.nn.blocks import EncoderBlock
from posattn_jax.tasks.blocks import BlockTask, Params, Totals


@dataclasses.dataclass(frozen=True)
class SentencePrediction(BlockTask):
    """Cross-entropy of labels, or, where the model has one output, the squared error of a number.

    Attributes:
      model: the model.
      length: t, of the sequences.
      num_examples: more than any example's id, in training and validation.
      metric: what the validation is judged by: Matthews' correlation, accuracy, the mean of accuracy and F1 of label
        1, or the mean of Pearson's and Spearman's correlation.
      pad_id: of the token that fills sequences up: nothing attends to it.
      span_bounds: see `BlockTask`.
    """

    score: ClassVar[str] = "score"
    unit: ClassVar[str] = "sequences"

    model: SequenceClassifier
    length: int
    num_examples: int
    metric: Literal["matthews", "accuracy", "accuracy_f1", "correlation"] = "accuracy"
    pad_id: int = 0
    span_bounds: tuple[Shape, ...] | None = None

    @property
    def grid_shape(self) -> Shape:
        """The sequence."""
        return (self.length,)

    @property
    def blocks(self) -> Sequence[EncoderBlock]:
        """Of the encoder."""
        return self.model.encoder.blocks

    def init(self, rng: Array) -> Params:
        """The parameters of a fresh model."""
        return self.model.init(rng, jnp.zeros((1, self.length), jnp.int32))["params"]

    def _logits(self, params: Params, batch: dict[str, Array], rng: Array | None = None) -> Float[Array, "b k"]:
        logits, _ = self.model.apply(
            {"params": params},
            batch["tokens"],
            segments=batch["segments"],
            key_mask=batch["tokens"] != self.pad_id,
            span_bounds=self.span_bounds,
            deterministic=rng is None,
            rngs=None if rng is None else {"dropout": rng},
        )
        return logits

    def _told(self, logits: Float[Array, "b k"]) -> Float[Array, " b"]:
        labels = jnp.argmax(logits, -1).astype(jnp.float32)
        return logits[:, 0].astype(jnp.float32) if self.model.num_outputs == 1 else labels

    def predict(self, params: Params, batch: dict[str, Array]) -> Float[Array, " b"]:
        """The number of the label, or the number, that the model tells of each example."""
        return self._told(self._logits(params, batch))

    def loss(self, params: Params, batch: dict[str, Array], rng: Array | None = None) -> tuple[Array, Totals]:
        """The loss of a batch and its totals.

        The batch is {"tokens", "segments" [b t], "targets", "groups", "ids" [b], optional "weights" [b]}. Without
        `rng` dropout is off. Totals add up over batches: see `summarise`.
        """
        logits, targets = self._logits(params, batch, rng), batch["targets"]
        if self.model.num_outputs == 1:
            losses = jnp.square(logits[:, 0] - targets)
        else:
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
        weights = batch.get("weights", jnp.ones(len(logits)))
        totals = {"loss": jnp.sum(weights * losses), "count": jnp.sum(weights)}
        each = {"told": self._told(logits), "targets": targets, "groups": batch["groups"], "seen": weights}
        nothing = jnp.zeros(self.num_examples)
        totals |= {name: nothing.at[batch["ids"]].add(weights * value) for name, value in each.items()}
        return totals["loss"] / totals["count"], totals

    def zero_totals(self) -> Totals:
        """The totals of no examples."""
        each = {name: jnp.zeros(self.num_examples) for name in ("told", "targets", "groups", "seen")}
        return {"loss": jnp.zeros(()), "count": jnp.zeros(())} | each

    def summarise(self, totals: Mapping[str, Any]) -> dict[str, float]:
        """The mean loss, the task's metrics, and "score", the one it is judged by.

        Where examples are of a second group, such as MNLI's mismatched ones, "..._mismatched" are the metrics of
        these, and the others those of the first.
        """
        seen = np.asarray(totals["seen"]) > 0
        told, targets, groups = (np.asarray(totals[name])[seen] for name in ("told", "targets", "groups"))
        figures = {"loss": float(totals["loss"]) / float(totals["count"])}
        for group, suffix in ((0, ""), (1, "_mismatched")):
            own = groups == group
            if own.any():
                found = self.metrics(targets[own], told[own])
                figures |= {f"{name}{suffix}": value for name, value in found.items()}
        return figures

    def metrics(self, targets: np.ndarray, told: np.ndarray) -> dict[str, float]:
        """The metrics of what was told; a correlation with what is always the same is 0."""
        from scipy import stats
        from sklearn import metrics  # a second to import, and only these tasks need it

        if self.metric == "correlation":
            constant = np.ptp(targets) == 0 or np.ptp(told) == 0
            pearson, spearman = (
                0.0 if constant else float(correlation(targets, told).statistic)
                for correlation in (stats.pearsonr, stats.spearmanr)
            )
            return {"score": (pearson + spearman) / 2, "pearson": pearson, "spearman": spearman}
        accuracy = float(np.mean(targets == told))
        match self.metric:
            case "matthews":
                matthews = float(metrics.matthews_corrcoef(targets, told))
                return {"score": matthews, "matthews": matthews, "accuracy": accuracy}
            case "accuracy_f1":
                f1 = float(metrics.f1_score(targets, told, zero_division=0.0))
                return {"score": (accuracy + f1) / 2, "accuracy": accuracy, "f1": f1}
            case _:
                return {"score": accuracy, "accuracy": accuracy}

    def always_the_same(self, trained_on: np.ndarray, targets: np.ndarray) -> dict[str, float]:
        """The metrics of telling of each of `targets` the most frequent label of training, or its mean score."""
        is_number = self.model.num_outputs == 1
        answer = np.mean(trained_on) if is_number else np.argmax(np.bincount(trained_on))
        return self.metrics(targets, np.full(len(targets), answer))

    def describe(self, params: Params) -> Any:
        """See `BlockTask`."""
        return self.model.encoder.apply({"params": params["encoder"]}, jnp.zeros((1, self.length), jnp.int32))[1]
