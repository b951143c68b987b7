"""A run as the loop knows it, alone or with others: its seed, its data in their order, and its folder."""

import pathlib
from collections.abc import Mapping

import numpy as np

from posattn_jax.data.batches import Order, ResidentIds, Share, Source, training_batches
from posattn_jax.system.errors import InputError, RunError
from posattn_jax.system.processes import is_first
from posattn_jax.train.checkpoint import Checkpoints
from posattn_jax.train.step import TrainState
from posattn_jax.train.writers import MetricWriter, Writer, Writers


class Member:
    """One run.

    Attributes:
      seed: of the initialisation, dropout and the order of the data.
      train_source, validation_source: its examples.
      name: what its messages begin with where it is not alone.
      batches: of training, in its order, from `read` on.
      writers: that its metrics go to beside its folder, before `open`.
      checkpoints: of its folder, from `open` on.
      seconds: that it has been trained: when it was opened, and again at the end. Of vmapped seeds each
        counts its share.
      shown: its latest figures, for the terminal.
    """

    def __init__(self, seed: int, train_source: Source, validation_source: Source):
        self.seed, self.train_source, self.validation_source = seed, train_source, validation_source
        self.name = ""
        self.writers: list[Writer] = []

    def read(self, order: Order, num_micro_batches: int, share: Share, resident: bool) -> None:
        """Begins to read its examples in an order; of those that are device-resident the ids alone."""
        source = ResidentIds(len(self.train_source)) if resident else self.train_source
        self.batches = training_batches(source, order.dataset(), num_micro_batches, share)

    def open(self, workdir: pathlib.Path, abstract: TrainState, keep: int, total_steps: int) -> TrainState | None:
        """The state that its folder has, from which its data then go on too; None where there is none yet.

        Raises:
          InputError: the run is already further than it shall go.
          RunError: none of its checkpoints can be read.
        """
        self.shown: dict[str, float] = {}
        self.checkpoints = Checkpoints(workdir, keep=keep)
        state, progress = self.checkpoints.restore(abstract) or (None, {"seconds": 0.0})
        self.seconds, step = progress["seconds"], 0 if state is None else int(state.step)
        if state is not None:
            self.batches.set_state(progress["data"])
        if step > total_steps:
            raise InputError(f"{self.name}train.total_steps={total_steps}: the run has already done {step} steps")
        self._writer = Writers(*([MetricWriter(workdir, step)] if is_first() else []), *self.writers)
        self.write = self._writer.write
        return state

    def save(self, state: TrainState, seconds: float, score: float | None = None) -> None:
        """Saves what comes after so many seconds since it was opened; `score` is that of an evaluation."""
        progress = {"data": self.batches.get_state(), "seconds": self.seconds + seconds}
        self.checkpoints.save(state, progress, score)

    def check(self, first: int, figures: Mapping[str, np.ndarray]) -> None:
        """RunError unless the figures of the updates from `first` on, each [updates], are finite."""
        for i in range(len(figures["loss"])):
            for name, values in figures.items():
                if not np.isfinite(values[i]):
                    raise RunError(f"{self.name}{name} is {values[i]} at step {first + i}: stopped; {self._kept()}")
        self.shown["loss"] = float(figures["loss"][-1])

    def check_validation(self, step: int, metrics: Mapping[str, float]) -> None:
        """RunError unless they are finite."""
        for name, value in metrics.items():
            if not np.isfinite(value):
                raise RunError(f"{self.name}validation {name} is {value} at step {step}: stopped; {self._kept()}")

    def _kept(self) -> str:
        saved = self.checkpoints.latest_step()
        return "no checkpoint was saved yet" if saved is None else f"the checkpoint of step {saved} is kept"

    def close(self) -> None:
        """Closes its folder."""
        self._writer.close()
        self.checkpoints.close()

    def line(self, epoch: float, unit: str, metrics: Mapping[str, Mapping[str, float]]) -> str:
        """About an epoch, with the metrics of each part of the data."""
        figures = "  ".join(
            f"{split} " + " ".join(f"{name} {value:.4f}" for name, value in values.items())
            for split, values in metrics.items()
        )
        computed = f"  scores computed {self.shown['scores']:.0%}" if "scores" in self.shown else ""
        rate, waiting = f"{self.shown[unit]:.3g} {unit}", f"waiting for data {self.shown['waiting']:.1%}"
        return f"{self.name}epoch {epoch:.2f}  {figures}{computed}  {rate}  {waiting}"
