"""The interface between the training loop and a task."""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax.numpy as jnp
import optax

from posattn_jax.axes import Array, Shape

Params = Any
Totals = dict[str, Array]
Batch = dict[str, Array]
FROM_DATA = {"from": "data"}  # the metadata of fields that are not in a config


def cross_entropy(logits: Array, targets: Array, weights: Array) -> Totals:
    """The totals {"loss", "correct", "count"} of logits [*n k] for targets and weights [*n]."""
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    correct = jnp.argmax(logits, -1) == targets
    return {"loss": jnp.sum(weights * losses), "correct": jnp.sum(weights * correct), "count": jnp.sum(weights)}


def means(totals: Mapping[str, Any]) -> dict[str, float]:
    """The mean "loss" and the "accuracy" of what is in the totals of `cross_entropy`; 0 if that is nothing."""
    loss, correct, count = (float(totals[name]) for name in ("loss", "correct", "count"))
    return {"loss": loss / max(count, 1), "accuracy": correct / max(count, 1)}


class Task:
    """The loss and the metrics of a run: a dataclass, of which the training loop uses only what is declared here.

    Its fields come from the config, except those with the metadata `FROM_DATA`: the model, and what the source of the
    examples `knows`.

    Attributes:
      score: the name of the validation metric that chooses the best epoch, which has its highest value.
      unit: what the examples are called in progress and speed.
      classes: the names of the predicted classes, in order; (): those of the data.
      models: the classes that the config's model may have.
      can_vmap_seeds: whether several seeds can be vmapped: see `train.seed_map`.
      model: the model.
      grid_shape: the grid on which attention works.
    """

    score: ClassVar[str]
    unit: ClassVar[str]
    classes: ClassVar[tuple[str, ...]] = ()
    models: ClassVar[tuple[type, ...]]
    can_vmap_seeds: ClassVar[bool] = False
    model: Any
    grid_shape: Shape

    @property
    def merges(self) -> bool:
        """Whether the loss of m equal batches in one, with keys [m], is the mean of their losses: see `Settings`."""
        return False

    @classmethod
    def around(cls, model: Any, knows: Mapping[str, Any]) -> Any:
        """The model of the task, built from the config's model and from what the source of the examples knows."""
        return model

    def init(self, rng: Array) -> Params:
        """The parameters of a fresh model."""
        raise NotImplementedError

    def loss(self, params: Params, batch: Batch, rng: Array | None = None) -> tuple[Array, Totals]:
        """The loss of a batch, and its totals, which can be added over batches. Without `rng`, nothing is random."""
        raise NotImplementedError

    def predict(self, params: Params, batch: Batch) -> Array:
        """The prediction for each example, of a task that has examples without labels."""
        raise NotImplementedError

    def zero_totals(self) -> Totals:
        """The totals of no examples. A task with other totals overrides this."""
        return {name: jnp.zeros(()) for name in ("loss", "correct", "count")}

    def summarise(self, totals: Mapping[str, Any]) -> dict[str, float]:
        """The metrics of the examples in the totals, including "loss" and `score`."""
        raise NotImplementedError

    def describe(self, params: Params) -> dict[str, dict[str, Array]]:
        """The arrays that pictures are drawn from, {block: {name: array}}."""
        raise NotImplementedError

    def half_spans(self, params: Params) -> list[Array]:
        """The half-spans [p] of each block; an empty list for a task without spans."""
        return []

    def spans(self, intermediates: Mapping[str, Mapping[str, Any]], batch_size: int = 1) -> dict[str, dict[str, list]]:
        """For each block with a span: "sigma", "size", "pair_share" and "score_share", from what `describe` returns."""
        return {}

    def at(self, step: Array) -> "Task":
        """The same task, as it is after `step` updates."""
        return self

    def within(self, span_bounds: tuple[Shape, ...]) -> "Task":
        """The same task, with implementations for spans that do not exceed the bounds."""
        return self
