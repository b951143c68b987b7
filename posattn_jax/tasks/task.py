"""What the training loop asks of a task."""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax.numpy as jnp

from posattn_jax.axes import Array, Shape

Params = Any
Totals = dict[str, Array]
Batch = dict[str, Array]
FROM_DATA = {"from": "data"}  # the metadata of fields that no config has


class Task:
    """What a run optimises and reports: a dataclass that the loop knows no more of than this.

    Its fields are what a config says; those with the metadata `FROM_DATA` are the model, and what the source of its
    examples `knows`.

    Attributes:
      score: of the validation metrics, the one by which the best epoch is chosen: the highest.
      unit: what the examples are, for progress and speed.
      classes: the names of what is told, by number; (): those of the data.
      models: of which class the config's model is one.
      can_vmap_seeds: whether its seeds can be vmapped: see `train.seed_map`.
      grid_shape: the grid that attention meets.
    """

    score: ClassVar[str]
    unit: ClassVar[str]
    classes: ClassVar[tuple[str, ...]] = ()
    models: ClassVar[tuple[type, ...]]
    can_vmap_seeds: ClassVar[bool] = False
    grid_shape: Shape

    @classmethod
    def around(cls, model: Any, knows: Mapping[str, Any]) -> Any:
        """The task's model, made with the config's and with what the source of the examples knows."""
        return model

    def init(self, rng: Array) -> Params:
        """The parameters of a fresh model."""
        raise NotImplementedError

    def loss(self, params: Params, batch: Batch, rng: Array | None = None) -> tuple[Array, Totals]:
        """The loss of a batch, and its totals, which add up over batches; without `rng` nothing is random."""
        raise NotImplementedError

    def zero_totals(self) -> Totals:
        """The totals of no examples; of a task whose totals are others, these."""
        return {name: jnp.zeros(()) for name in ("loss", "correct", "count")}

    def summarise(self, totals: Mapping[str, Any]) -> dict[str, float]:
        """The metrics of the examples in the totals, "loss" and `score` among them."""
        raise NotImplementedError

    def describe(self, params: Params) -> dict[str, dict[str, Array]]:
        """What pictures are drawn of: arrays by name, of each block by name."""
        raise NotImplementedError

    def half_spans(self, params: Params) -> list[Array]:
        """How far each block's queries see, [p] a block; of a task without spans none."""
        return []

    def spans(self, intermediates: Mapping[str, Mapping[str, Any]], batch_size: int = 1) -> dict[str, dict[str, list]]:
        """Of each block with a span "sigma", "size", "pair_share" and "score_share", from what `describe` returns."""
        return {}

    def at(self, step: Array) -> "Task":
        """The same task, as it is after so many updates."""
        return self

    def within(self, span_bounds: tuple[Shape, ...]) -> "Task":
        """The same task, its layouts made for spans that do not exceed the bounds."""
        return self
