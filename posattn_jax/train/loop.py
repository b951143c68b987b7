"""The training loop. It is the same for every task, for a single run and for several runs that differ in their seed.

A run resumes from its newest readable checkpoint, which has the state (parameters, optimiser, key, step, totals of the
epoch) and the position in the data. Metrics that were written after that step are dropped. On the same machine, the run
then continues bit for bit as it would have without the interruption.

Vmapped seeds are one program, in which all their arrays have a leading axis (see `train.seed_map`). Each seed has its
own folder, which differs from that of a single run only in the reported speed.
"""

import contextlib
import pathlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posattn_jax.system.doing import doing, tell
from posattn_jax.system.errors import RunError
from posattn_jax.system.processes import is_first
from posattn_jax.train.clock import Clock, seconds_alive
from posattn_jax.train.interruption import Interrupted, Interruption
from posattn_jax.train.member import Member
from posattn_jax.train.program import Bounds, Figures, Program, SpanBounds
from posattn_jax.train.progress import Progress, speed
from posattn_jax.train.sharding import bytes_of
from posattn_jax.train.step import TrainState
from posattn_jax.train.writers import Writer

AHEAD = 2  # dispatches of updates that may wait for the device


class Trainer:
    """Trains the runs of a program. It starts them, or resumes them from the checkpoints in their folders.

    Attributes:
      members: the run of each seed.
      state: the state of all runs.
      step: the number of updates done.

    Args:
      program: the compiled functions.
      workdirs: the folder of each seed.
      starts: for each seed, a function from fresh parameters to those that the run starts with. None, or an empty
        sequence: the fresh ones.
      writers: where metrics go besides the folders.

    Raises:
      InputError: a run has already done more updates than it should, or as many without an evaluation after the last.
      RunError: none of a run's checkpoints can be read, or the runs are at different steps.
    """

    def __init__(
        self,
        program: Program,
        workdirs: Sequence[pathlib.Path],
        starts: Sequence[Callable[[Any], Any] | None] = (),
        writers: Sequence[Writer] = (),
    ):
        self.program, self.task, self.settings = program, program.task, program.settings
        self._eval_steps = self.settings.eval_steps or program.steps_per_epoch
        with doing("looking for checkpoints"):
            opened = [Member.open(program, i, workdir, writers) for i, workdir in enumerate(workdirs)]
        self.members = [member for member, _ in opened]
        with _compiling("initialisation"):
            states = [
                program.init(member.data.seed, start) if state is None else state
                for (member, state), start in zip(opened, starts or [None] * len(opened), strict=True)
            ]
        steps = [int(state.step) for state in states]
        if len(set(steps)) > 1:
            raise RunError(f"the runs are at different steps, {steps}: the same command lets those behind catch up")
        self.step = steps[0]
        self.state: TrainState = states[0] if len(states) == 1 else program.stack(states)
        self._bounds = None
        if self.settings.bounds_spans:
            self._bounds = SpanBounds(self.task, self.state.params, program.seeds)
        self._examples_per_step = program.examples_per_step * len(self.members)
        self._pending: list[tuple[int, int, Figures]] = []
        self._compiled: set[Bounds | None] = set()

    @property
    def epoch(self) -> float:
        return self.step / self.program.steps_per_epoch

    @property
    def states(self) -> list[TrainState]:
        """The state of each run."""
        return [self.state] if len(self.members) == 1 else self.program.split(self.state)

    def run(self, until: int | None = None) -> None:
        """Trains to the end, or to the step `until`, where it saves, and evaluates only if an evaluation is due.

        Raises:
          RunError: the loss, its gradient, the parameters or the validation metrics are not finite.
          Interrupted: SIGINT or SIGTERM arrived, and the run was saved.
        """
        program, settings = self.program, self.settings
        last = settings.total_steps if until is None else until
        batches = [member.batches for member in self.members]
        self._tell_memory()
        progress = Progress(settings.total_steps, self.step, program.steps_per_epoch, silent=not is_first())
        try:
            with Interruption().noted() as interruption:
                clock = Clock(self.step)
                while self.step < last:
                    count = 1 if clock.compiling else min(program.most, *self._steps_until_due(last))
                    with self._compiling_update():
                        self.state, figures = program.update(self.state, batches, count, self._span_bounds, clock)
                    self._pending.append((self.step + 1, count, figures))
                    if len(self._pending) > AHEAD:  # or a signal would wait for all that were dispatched
                        jax.block_until_ready(self._pending[-1 - AHEAD][2])
                    self.step += count
                    if self._bounds is not None:
                        self._bounds.follow(self.state.params)
                    if clock.compiling:
                        self._check()
                        progress.lines([f"first update {seconds_alive():.1f} s after the start"])
                        progress.begin(self.step)
                        clock.start_rate(self.step)
                    evaluates = self.step % self._eval_steps == 0 or self.step == settings.total_steps
                    if evaluates or self.step % settings.log_steps == 0:
                        self._check()
                        progress.show(self.step, self._figures(clock))
                        self._log(clock)
                    elif progress.is_due:
                        self._check()
                        progress.show(self.step, self._figures(clock))
                    if evaluates:
                        with doing("evaluating"):
                            lines = self._evaluate(clock)
                        progress.lines(lines)
                        clock.start_rate(self.step)
                    elif settings.checkpoint_steps and self.step % settings.checkpoint_steps == 0:
                        self._save(clock)
                    if self.step < settings.total_steps and (signum := interruption.asked_at(self.step)):
                        self._save(clock)
                        self._wait()
                        raise Interrupted(signum, self.step)
                if self.step < settings.total_steps:
                    self._save(clock)
                for member in self.members:
                    member.seconds += self._seconds(clock)
                self._wait()
        finally:
            progress.close()

    def close(self) -> None:
        for member in self.members:
            member.close()

    @property
    def _span_bounds(self) -> Bounds | None:
        return None if self._bounds is None else self._bounds.value

    def _steps_until_due(self, last: int) -> list[int]:
        """The number of updates until each next event: logging, evaluation, checkpoint and end."""
        periods = self.settings.log_steps, self._eval_steps, self.settings.checkpoint_steps
        return [last - self.step, *(period - self.step % period for period in periods if period)]

    def _tell_memory(self) -> None:
        devices = self.program.mesh.size
        if devices > 1:
            whole, on_each = (size / 2**20 for size in bytes_of(self.program.abstract_all))
            tell(f"parameters and optimiser: {whole:,.1f} MiB, {on_each:,.1f} on each of {devices} devices")

    def _wait(self) -> None:
        for member in self.members:
            member.checkpoints.wait()

    def _check(self) -> None:
        """Waits for the pending updates, and checks that their figures are finite."""
        for first, count, figures in jax.device_get(self._pending):
            for member, own in zip(self.members, self.program.seeds.split(figures), strict=True):
                for i in range(count):
                    member.check(first + i, {name: float(values[i]) for name, values in own.items()})
                member.shown["loss"] = float(own["loss"][count - 1])
                norms = {name: float(values[count - 1]) for name, values in own.items() if "/" in name}
                member.norms = {name.partition("/")[2]: norm for name, norm in norms.items()}
        self._pending.clear()

    def _compiling_update(self) -> AbstractContextManager[None]:
        """A context for an update. It reports that it is compiled, if it has new span bounds."""
        if self._span_bounds in self._compiled:
            return contextlib.nullcontext()
        self._compiled.add(self._span_bounds)
        return _compiling("update")

    def _figures(self, clock: Clock) -> list[str]:
        """The figures shown during a run: loss, score and speed."""
        each = [member.shown for member in self.members]
        shown = {name: float(np.mean([of_one[name] for of_one in each])) for name in each[0]}
        rate = self._rate(clock)
        names = [name for name in ("loss", self.task.score) if name in shown]
        figures = [f"{name} {shown[name]:.4g}" for name in names]
        return figures if rate is None else [*figures, speed(rate, self.task.unit)]

    def _rate(self, clock: Clock) -> float | None:
        """The examples per second of all runs; None where it is not known yet, in the first update."""
        steps = clock.steps_per_second(self.step)
        return None if steps is None else steps * self._examples_per_step

    def _log(self, clock: Clock) -> None:
        """Writes the spans, the last gradient's norms, and the speed and the waiting for data since the last call."""
        seconds, waiting, rate = self._seconds(clock), clock.waiting_share, self._rate(clock)
        measured = {} if rate is None else {f"{self.task.unit}_per_second": rate, "waiting_for_data": waiting}
        clock.start_rate(self.step)
        task = self.program.within(self._span_bounds)
        sigmas = self.program.seeds.split(jax.device_get(self.program.sigmas(self.state.params)))
        for member, of_blocks in zip(self.members, sigmas, strict=True):
            member.write(self.step, self.epoch, "speed", measured | {"seconds": member.seconds + seconds})
            member.write(self.step, self.epoch, "gradient_norm", member.norms)
            spans = task.spans(of_blocks, batch_size=self.program.micro_batches[1])
            for block, span in spans.items():
                for name, values in span.items():
                    flat = np.ravel(values).tolist()
                    figures = {f"{block}/{name}_{i}": value for i, value in enumerate(flat)}
                    member.write(self.step, self.epoch, "span", figures)
            if spans:
                for name in ("pair_share", "score_share"):
                    member.shown[name] = float(np.mean([share for span in spans.values() for share in span[name]]))
            member.shown |= {} if rate is None else {"rate": rate, "waiting": waiting}

    def _evaluate(self, clock: Clock) -> list[str]:
        """Evaluates, writes the metrics of validation and of training since the last time, and saves; returns lines."""
        totals = self.program.seeds.split(jax.device_get(self.state.totals))
        if self.step % self._eval_steps == 0:  # not at an end in between: the run may be lengthened later
            self.state = self.state.replace(totals=jax.tree.map(jnp.zeros_like, self.state.totals))
        validations = self.program.evaluate(self.state.params, self._span_bounds)
        score, lines = self.task.score, []
        for member, validation in zip(self.members, validations, strict=True):
            member.check(self.step, {f"validation {name}": value for name, value in validation.items()})
        for member, own, validation in zip(self.members, totals, validations, strict=True):
            metrics = {"train": self.task.summarise(own), "validation": validation}
            for split, values in metrics.items():
                member.write(self.step, self.epoch, split, values)
            member.shown[score] = validation[score]
            lines += member.lines(self.epoch, self.task.unit, metrics)
        self._save(clock, [validation[score] for validation in validations])
        return lines

    def _save(self, clock: Clock, scores: Sequence[float] | None = None) -> None:
        self._check()
        for i, (member, state) in enumerate(zip(self.members, self.states, strict=True)):
            member.save(state, self._seconds(clock), None if scores is None else scores[i])

    def _seconds(self, clock: Clock) -> float:
        """The time since the start of the clock, divided by the number of runs."""
        return clock.seconds / len(self.members)


def _compiling(what: str) -> AbstractContextManager[None]:
    """A context that reports what is compiled. On a busy core of a CPU, that takes minutes."""
    return doing(f"compiling the {what} (may take minutes; later runs read it)")
