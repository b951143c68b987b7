"""Prediction of a label, or a number, for a sentence or a pair of sentences, as in GLUE: the loss and the metrics."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
import optax

from posattn_jax.axes import Array, Float
from posattn_jax.data.text.sequences import Metric
from posattn_jax.models.bert import Bert, SequenceClassifier
from posattn_jax.tasks.blocks import SequenceTask
from posattn_jax.tasks.task import FROM_DATA, Params, Totals


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentencePrediction(SequenceTask):
    """Cross-entropy of labels or, if the model has one output, the squared error of a number.

    Attributes:
      num_examples: a number larger than any example's id, in training and validation.
      metric: the metric that "score" is: "matthews" (Matthews' correlation), "accuracy", "accuracy_f1" (the mean of
        accuracy and of the F1 of label 1), or "correlation" (the mean of Pearson's and Spearman's).
      pretrained: the folder of a run whose encoder this run starts with. "{seed}" in it is replaced by this run's
        seed. The head is initialised anew, unless it predicts the same labels of the same data set.
      model, input_shape, pad_id: see `SequenceTask`.
    """

    score: ClassVar[str] = "score"

    model: SequenceClassifier = dataclasses.field(metadata=FROM_DATA)
    num_examples: int = dataclasses.field(metadata=FROM_DATA)
    metric: Metric = dataclasses.field(default="accuracy", metadata=FROM_DATA)
    pretrained: str = ""

    @classmethod
    def around(cls, model: Bert, knows: Mapping[str, Any]) -> SequenceClassifier:
        return SequenceClassifier(model, knows["num_outputs"])

    def _predicted(self, logits: Float[Array, "b k"]) -> Float[Array, " b"]:
        labels = jnp.argmax(logits, -1).astype(jnp.float32)
        return logits[:, 0].astype(jnp.float32) if self.model.num_outputs == 1 else labels

    def predict(self, params: Params, batch: dict[str, Array]) -> Float[Array, " b"]:
        """The predicted label, as its index, or the predicted number of each example."""
        return self._predicted(self.apply(params, batch)[0])

    def loss(self, params: Params, batch: dict[str, Array], rng: Array | None = None) -> tuple[Array, Totals]:
        """The loss of a batch and its totals.

        The batch is {"tokens", "segments" [b t], "targets", "groups", "ids" [b], optional "weights" [b]}. Without
        `rng`, dropout is off. Totals can be added over batches: see `summarise`.
        """
        logits, intermediates = self.apply(params, batch, rng)
        targets = batch["targets"]
        if self.model.num_outputs == 1:
            losses = jnp.square(logits[:, 0] - targets)
        else:
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
        weights = batch.get("weights", jnp.ones(len(logits)))
        totals = {"loss": jnp.sum(weights * losses), "count": jnp.sum(weights)}
        each = {"predictions": self._predicted(logits), "targets": targets, "groups": batch["groups"], "seen": weights}
        nothing = jnp.zeros(self.num_examples)
        totals |= {name: nothing.at[batch["ids"]].add(weights * value) for name, value in each.items()}
        return totals["loss"] / totals["count"] + self.penalty_of(intermediates), totals

    def zero_totals(self) -> Totals:
        """The totals of no examples."""
        each = {name: jnp.zeros(self.num_examples) for name in ("predictions", "targets", "groups", "seen")}
        return {"loss": jnp.zeros(()), "count": jnp.zeros(())} | each

    def summarise(self, totals: Mapping[str, Any]) -> dict[str, float]:
        """The mean loss, the task's metrics, and "score", which chooses the best epoch; see `by_group`.

        An example that was seen several times, as in training for more than an epoch, counts once: with the mean of its
        predictions, which for labels is rounded.
        """
        times = np.asarray(totals["seen"])
        seen = times > 0
        predictions, targets, groups = (
            np.asarray(totals[name])[seen] / times[seen] for name in ("predictions", "targets", "groups")
        )
        if self.model.num_outputs > 1:
            predictions = np.rint(predictions)
        return {"loss": float(totals["loss"]) / float(totals["count"])} | self.by_group(targets, predictions, groups)

    def by_group(self, targets: np.ndarray, predictions: np.ndarray, groups: np.ndarray) -> dict[str, float]:
        """The metrics of the first group and, as "..._mismatched", those of the second, which only MNLI has."""
        figures = {}
        for group, suffix in ((0, ""), (1, "_mismatched")):
            own = groups == group
            if own.any():
                found = self.metrics(targets[own], predictions[own])
                figures |= {f"{name}{suffix}": value for name, value in found.items()}
        return figures

    def metrics(self, targets: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
        """The metrics of `predictions`. The correlation with constant values is 0."""
        from scipy import stats
        from sklearn import metrics  # a second to import, and only these tasks need it

        if self.metric == "correlation":
            constant = np.ptp(targets) == 0 or np.ptp(predictions) == 0
            kinds: tuple[Any, ...] = stats.pearsonr, stats.spearmanr
            pearson, spearman = (
                0.0 if constant else float(correlation(targets, predictions).statistic) for correlation in kinds
            )
            return {"score": (pearson + spearman) / 2, "pearson": pearson, "spearman": spearman}
        accuracy = float(np.mean(targets == predictions))
        match self.metric:
            case "matthews":
                matthews = float(metrics.matthews_corrcoef(targets, predictions))
                return {"score": matthews, "matthews": matthews, "accuracy": accuracy}
            case "accuracy_f1":
                f1_score: Any = metrics.f1_score  # whose types are those of its defaults
                f1 = float(f1_score(targets, predictions, zero_division=0.0))
                return {"score": (accuracy + f1) / 2, "accuracy": accuracy, "f1": f1}
            case _:
                return {"score": accuracy, "accuracy": accuracy}

    def always_the_same(self, trained_on: np.ndarray, targets: np.ndarray, groups: np.ndarray) -> dict[str, float]:
        """The metrics of always predicting the most frequent label of the training data, or their mean number."""
        is_number = self.model.num_outputs == 1
        answer = np.mean(trained_on) if is_number else np.argmax(np.bincount(trained_on))
        return self.by_group(targets, np.full(len(targets), answer), groups)
