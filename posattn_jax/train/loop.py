"""The training loop, the same for every task.

A run resumes in this order: the newest readable checkpoint gives the state (parameters, optimiser, key, step, totals
of the epoch) and the position in the data; metrics written after that step are dropped. What follows is then, on one
machine, bit for bit what it would have been without the interruption.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from posattn_jax.data.batches import Ordered, Resident, Source, order_of
from posattn_jax.errors import InputError, RunError
from posattn_jax.processes import is_first
from posattn_jax.train.bounds import Bounds, SpanBounds
from posattn_jax.train.checkpoint import Checkpoints
from posattn_jax.train.clock import Clock, seconds_alive
from posattn_jax.train.dispatch import Dispatcher, Figures
from posattn_jax.train.evaluator import Evaluator
from posattn_jax.train.held import Held
from posattn_jax.train.interruption import Interrupted, Interruption
from posattn_jax.train.sharding import bytes_of, num_shards, state_sharding
from posattn_jax.train.step import Task, TrainState, init_state, plan_micro_batches
from posattn_jax.train.writers import MetricWriter, Progress, Writer, Writers


@dataclasses.dataclass(frozen=True)
class Settings:
    """How long and in what portions a run trains.

    Attributes:
      seed: of the initialisation, dropout and the order of the data.
      total_steps: the updates of the run.
      batch_size: the examples of a micro-batch; of a source that is `Ordered`, what that counts.
      accumulation_steps: the micro-batches whose gradients are summed into an update.
      eval_batch_size: the examples of a batch of evaluation.
      log_steps: the updates between two looks at the loss.
      checkpoint_steps: the updates between two checkpoints, besides the one of every evaluation; 0: none besides.
      eval_steps: the updates between two evaluations; 0: an epoch.
      keep_checkpoints: of how many evaluations they are kept, the last, and from the best one on; see `Checkpoints`.
      bounded_spans: whether layouts are compiled for static bounds of the spans (see `train.bounds`); otherwise their
        cost follows the spans at run time.
      dispatch_steps: the updates that the devices are given at once; one where spans are bounded, which are looked at
        after each, and where batches have several shapes.
      held_mib: the MiB of examples, of a source that is `Resident`, that each device holds at most.
    """

    seed: int
    total_steps: int
    batch_size: int
    accumulation_steps: int
    eval_batch_size: int
    log_steps: int
    checkpoint_steps: int = 0
    eval_steps: int = 0
    keep_checkpoints: int = 1
    bounded_spans: bool = False
    dispatch_steps: int = 1
    held_mib: int = 0

    def __post_init__(self):
        for name in ("total_steps", "eval_batch_size", "log_steps", "keep_checkpoints", "dispatch_steps"):
            if getattr(self, name) < 1:
                raise InputError(f"train.{name}={getattr(self, name)}: expected at least 1")
        for name in ("checkpoint_steps", "eval_steps", "held_mib"):
            if getattr(self, name) < 0:
                raise InputError(f"train.{name}={getattr(self, name)}: expected 0 or more")

    @property
    def examples_per_step(self) -> int:
        return self.batch_size * self.accumulation_steps


def abstract_state(task: Task, optimizer: optax.GradientTransformation, seed: int, mesh: Mesh) -> TrainState:
    """The shapes, dtypes and shardings of a run's state."""
    state = jax.eval_shape(lambda: init_state(task, optimizer, seed))
    return jax.tree.map(
        lambda array, sharding: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding),
        state,
        state_sharding(state, mesh),
    )


class Trainer:
    """One run: its compiled functions, its state, and its folder."""

    def __init__(
        self,
        task: Task,
        optimizer: optax.GradientTransformation,
        train_source: Source,
        validation_source: Source,
        mesh: Mesh,
        settings: Settings,
    ):
        self.task, self.mesh, self.settings = task, mesh, settings
        self.train_source, self.validation_source = train_source, validation_source
        order = order_of(train_source, settings.batch_size, settings.accumulation_steps, settings.seed)
        self.steps_per_epoch, self.examples_per_step = order.steps_per_epoch, order.examples_per_step
        self.eval_steps = settings.eval_steps or self.steps_per_epoch
        if isinstance(train_source, Ordered):
            if train_source.row_multiple % num_shards(mesh):
                needed = f"a divisor of {train_source.row_multiple}, the multiple that a batch has rows of"
                raise InputError(f"mesh.data x mesh.fsdp is {num_shards(mesh)}: expected {needed}")
            self.micro_batches = settings.accumulation_steps, settings.batch_size
        else:
            self.micro_batches = plan_micro_batches(settings.batch_size, settings.accumulation_steps, num_shards(mesh))

        self.abstract = abstract_state(task, optimizer, settings.seed, mesh)
        shardings = jax.tree.map(lambda array: array.sharding, self.abstract)
        self.num_parameters = sum(array.size for array in jax.tree.leaves(self.abstract.params))
        self._task_within = functools.cache(lambda bounds: task if bounds is None else task.within(bounds))
        held, self._held_validation = (
            Held(source, mesh)
            if isinstance(source, Resident) and source.num_bytes <= settings.held_mib * 2**20
            else None
            for source in (train_source, validation_source)
        )
        self._dispatcher = Dispatcher(
            task,
            optimizer,
            train_source,
            order,
            mesh,
            self.micro_batches[0],
            settings.accumulation_steps,
            1 if settings.bounded_spans or isinstance(train_source, Ordered) else settings.dispatch_steps,
            held,
            shardings,
        )
        self._evaluator_within = functools.cache(
            lambda bounds: Evaluator(self._task_within(bounds), mesh, settings.eval_batch_size)
        )
        self._sigmas = jax.jit(  # of what `describe` makes the rest is not computed
            lambda params: {
                block: {name: array for name, array in out.items() if name == "sigma"}
                for block, out in task.describe(params).items()
            },
            out_shardings=NamedSharding(mesh, PartitionSpec()),  # every process has it whole
        )
        self._init = jax.jit(lambda: init_state(task, optimizer, settings.seed), out_shardings=shardings)
        self._pending: list[tuple[int, int, Figures]] = []
        self._shown: dict[str, float] = {}

    def open(
        self, workdir: pathlib.Path, pretrained: Callable[[Any], Any] | None = None, writers: Sequence[Writer] = ()
    ) -> None:
        """Takes up the run where its folder left it, or begins it, with what `pretrained` makes of fresh parameters.

        Metrics go to the folder, and to `writers`.

        Raises:
          InputError: the run is already further than it shall go.
          RunError: none of its checkpoints can be read.
        """
        self.checkpoints = Checkpoints(workdir, keep=self.settings.keep_checkpoints)
        restored = self.checkpoints.restore(self.abstract)
        if restored is None:
            self.state, self.seconds = self._init(), 0.0
            if pretrained is not None:
                params = pretrained(self.state.params)
                shardings = jax.tree.map(lambda array: array.sharding, self.abstract.params)
                self.state = self.state.replace(params=jax.device_put(params, shardings))
        else:
            self.state, progress = restored
            self._dispatcher.batches.set_state(progress["data"])
            self.seconds = progress["seconds"]
        self.step = int(self.state.step)
        self._bounds = SpanBounds(self.task, self.state.params) if self.settings.bounded_spans else None
        if self.step > self.settings.total_steps:
            raise InputError(
                f"train.total_steps={self.settings.total_steps}: the run has already done {self.step} steps"
            )
        self._writer = Writers(*([MetricWriter(workdir, self.step)] if is_first() else []), *writers)

    @property
    def _span_bounds(self) -> Bounds | None:
        return None if self._bounds is None else self._bounds.value

    @property
    def epoch(self) -> float:
        return self.step / self.steps_per_epoch

    def run(self) -> None:
        """Trains to the end.

        Raises:
          RunError: the loss, its gradient, the parameters or the validation metrics are not finite.
          Interrupted: by SIGINT or SIGTERM, after saving.
        """
        settings = self.settings
        if self.mesh.size > 1:
            whole, on_each = (size / 2**20 for size in bytes_of(self.abstract))
            print(f"parameters and optimiser: {whole:,.1f} MiB, {on_each:,.1f} on each of {self.mesh.size} devices")
        bar = Progress(settings.total_steps, self.step, self.examples_per_step, self.task.unit, silent=not is_first())
        try:
            with Interruption() as interruption:
                clock = Clock(self.seconds, self.step)
                while self.step < settings.total_steps:
                    self._update(clock)
                    if clock.compiling:
                        self._check()
                        bar.line(f"first update {seconds_alive():.1f} s after the start")
                        clock.start_rate(self.step)
                    evaluates = self.step % self.eval_steps == 0 or self.step == settings.total_steps
                    if evaluates or self.step % settings.log_steps == 0:
                        self._check()
                        self._log(clock)
                        bar.show(self.step, self.epoch, self._shown)
                    if evaluates:
                        bar.line(self._evaluate(clock))
                        clock.start_rate(self.step)
                    elif settings.checkpoint_steps and self.step % settings.checkpoint_steps == 0:
                        self._save(clock.seconds)
                    if self.step < settings.total_steps and interruption.asked_at(self.step):
                        self._save(clock.seconds)
                        self.checkpoints.wait()
                        raise Interrupted(interruption.signum, self.step)
                self.seconds = clock.seconds
                self.checkpoints.wait()
        finally:
            bar.close()

    def close(self) -> None:
        self._writer.close()
        self.checkpoints.close()

    def _update(self, clock: Clock) -> None:
        """The updates up to where something else is due, as many as are dispatched at once; the first one alone."""
        settings = self.settings
        due = [settings.total_steps - self.step]
        due += [n - self.step % n for n in (settings.log_steps, self.eval_steps, settings.checkpoint_steps) if n]
        count = 1 if clock.compiling else min(self._dispatcher.most, *due)
        self.state, figures = self._dispatcher(self.state, count, self._span_bounds, clock)
        if self._bounds is not None:
            self._bounds.follow(self.state.params)
        self._pending.append((self.step + 1, count, figures))
        self.step += count

    def _check(self) -> None:
        """Waits for the pending updates, and makes sure that all were finite."""
        for first, count, figures in self._pending:
            for i in range(count):
                for name, values in jax.device_get(figures).items():
                    if not np.isfinite(values[i]):
                        raise RunError(f"{name} is {values[i]} at step {first + i}: stopped; {self._kept()}")
            self._shown["loss"] = float(figures["loss"][count - 1])
        self._pending.clear()

    def _kept(self) -> str:
        saved = self.checkpoints.latest_step()
        return "no checkpoint was saved yet" if saved is None else f"the checkpoint of step {saved} is kept"

    def _log(self, clock: Clock) -> None:
        """Writes the speed and the share of time that went into waiting for data since the last time; and the spans."""
        unit = self.task.unit
        rate, waiting = clock.steps_per_second(self.step) * self.examples_per_step, clock.waiting_share
        clock.start_rate(self.step)
        speed = {f"{unit}_per_second": rate, "waiting_for_data": waiting, "seconds": clock.seconds}
        self._writer.write(self.step, self.epoch, "speed", speed)
        task = self._task_within(self._span_bounds)
        spans = task.spans(jax.device_get(self._sigmas(self.state.params)), batch_size=self.micro_batches[1])
        for block, span in spans.items():
            for name, values in span.items():
                flat = np.ravel(values).tolist()
                figures = {f"{block}/{name}_{i}": value for i, value in enumerate(flat)}
                self._writer.write(self.step, self.epoch, "span", figures)
        if spans:
            self._shown["scores"] = float(np.mean([share for span in spans.values() for share in span["score_share"]]))
        self._shown |= {f"{unit}/s": rate, "waiting": waiting}

    def _evaluate(self, clock: Clock) -> str:
        """Evaluates, writes what the updates since the last time brought, and saves; returns a line about it."""
        train = self.task.summarise(jax.device_get(self.state.totals))
        if self.step % self.eval_steps == 0:  # not where the run ends in between: it may be lengthened
            self.state = self.state.replace(totals=jax.tree.map(jnp.zeros_like, self.state.totals))
        evaluate = self._evaluator_within(self._span_bounds)
        validation = evaluate(self.state.params, self.validation_source, self._held_validation)
        for name, value in validation.items():
            if not np.isfinite(value):
                raise RunError(f"validation {name} is {value} at step {self.step}: stopped; {self._kept()}")
        score = self.task.score
        self._shown[score] = validation[score]

        write = self._writer.write
        write(self.step, self.epoch, "train", train)
        write(self.step, self.epoch, "validation", validation)
        self._save(clock.seconds, validation[score])
        figures = "  ".join(
            f"{split} " + " ".join(f"{name} {value:.4f}" for name, value in metrics.items())
            for split, metrics in (("train", train), ("validation", validation))
        )
        computed = f"  scores computed {self._shown['scores']:.0%}" if "scores" in self._shown else ""
        unit = f"{self.task.unit}/s"
        waiting = f"waiting for data {self._shown['waiting']:.1%}"
        return f"epoch {self.epoch:.2f}  {figures}{computed}  {self._shown[unit]:.3g} {unit}  {waiting}"

    def _save(self, seconds: float, score: float | None = None) -> None:
        self._check()
        progress = {"data": self._dispatcher.batches.get_state(), "seconds": seconds}
        self.checkpoints.save(self.state, progress, score)
