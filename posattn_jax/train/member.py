"""One run in the training loop: its seed, its data in order, and its folder."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence

import grain
import numpy as np

from posattn_jax.system.errors import InputError, RunError
from posattn_jax.system.processes import is_first
from posattn_jax.train.checkpoint import Checkpoints
from posattn_jax.train.program import Program
from posattn_jax.train.progress import aligned, speed
from posattn_jax.train.seed_map import SeedData
from posattn_jax.train.step import TrainState
from posattn_jax.train.writers import MetricWriter, Writer


@dataclasses.dataclass
class Member:
    """One run, alone or vmapped with others.

    Attributes:
      data: its seed and its examples.
      batches: its training batches, in order.
      order: the version of that order.
      checkpoints: the checkpoints in its folder.
      writers: where its metrics go; empty in all processes but the first.
      seconds: the seconds of training before it was opened; `Trainer.run` adds its own. Vmapped seeds each count an
        equal share.
      name: the prefix of its messages; empty for a single run.
      shown: its latest figures, for the terminal.
      norms: the norms of its last gradient, see `gradient_norms`.
    """

    data: SeedData
    batches: grain.DatasetIterator
    order: int
    checkpoints: Checkpoints
    writers: Sequence[Writer]
    seconds: float
    name: str = ""
    shown: dict[str, float] = dataclasses.field(default_factory=dict)
    norms: dict[str, float] = dataclasses.field(default_factory=dict)

    @classmethod
    def open(
        cls, program: Program, i: int, workdir: pathlib.Path, writers: Sequence[Writer]
    ) -> "tuple[Member, TrainState | None]":
        """Opens the run of a program's i-th seed, its data at the position of its latest checkpoint.

        Returns the run and its saved state, None for a new run. Raises the errors of `Trainer`.
        """
        data, batches, settings = program.data[i], program.batches(i), program.settings
        name = f"seed {data.seed}: " if program.seeds.size > 1 else ""
        checkpoints = Checkpoints(workdir, keep=settings.keep_checkpoints)
        state, progress = checkpoints.restore(program.abstract) or (None, {"seconds": 0.0})
        step = 0 if state is None else int(state.step)
        order = program.orders[i].version
        if state is not None:
            if progress.get("order", 1) != order:
                raise InputError(
                    f"{name}the checkpoint in {workdir} is of an earlier version, which read the examples in another "
                    "order: go on with that version, or begin in another folder"
                )
            batches.set_state(progress["data"])
        if step > settings.total_steps:
            raise InputError(f"{name}train.total_steps={settings.total_steps}: the run has already done {step} steps")
        if step == settings.total_steps and not checkpoints.is_evaluated(step):  # it was stopped there, and shortened
            done = f"the run has already done {step} steps, without an evaluation after the last"
            raise InputError(f"{name}train.total_steps={step}: {done}: expected more")
        own = [MetricWriter(workdir, step)] if is_first() else []
        return cls(data, batches, order, checkpoints, (*own, *writers), progress["seconds"], name), state

    def write(self, step: int, epoch: float, split: str, metrics: dict[str, float | int]) -> None:
        for writer in self.writers:
            writer.write(step, epoch, split, metrics)

    def save(self, state: TrainState, seconds: float, score: float | None = None) -> None:
        """Saves the state, after `seconds` of training since it was opened. `score` is that of an evaluation."""
        progress = {"data": self.batches.get_state(), "order": self.order, "seconds": self.seconds + seconds}
        self.checkpoints.save(state, progress, score)

    def check(self, step: int, figures: Mapping[str, float]) -> None:
        """Raises RunError if a figure of a step is not finite."""
        for name, value in figures.items():
            if not np.isfinite(value):
                saved = self.checkpoints.latest_step()
                kept = "no checkpoint was saved yet" if saved is None else f"the checkpoint of step {saved} is kept"
                raise RunError(f"{self.name}{name} is {value} at step {step}: stopped; {kept}")

    def close(self) -> None:
        """Closes the writers and the checkpoints."""
        for writer in self.writers:
            writer.close()
        self.checkpoints.close()

    def lines(self, epoch: float, unit: str, metrics: Mapping[str, Mapping[str, float]]) -> list[str]:
        """Lines about an epoch: the metrics of each split, the speed, and the share of pairs inside the spans."""
        rows = {split: [f"{name} {value:.4f}" for name, value in values.items()] for split, values in metrics.items()}
        if "rate" in self.shown:  # not known yet after the first update
            rows["speed"] = [speed(self.shown["rate"], unit), f"waiting for data {self.shown['waiting']:.1%}"]
        if "pair_share" in self.shown:
            inside, computed = (self.shown[name] for name in ("pair_share", "score_share"))
            rows["pairs"] = [f"inside spans {inside:.1%}", f"computed {computed:.1%}"]
        return aligned(f"{self.name}epoch {epoch:.2f}", rows)
