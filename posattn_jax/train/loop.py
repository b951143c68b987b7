"""The training loop, the same for every task, for a run alone and for several that differ in their seed.

A run resumes in this order: the newest readable checkpoint gives the state (parameters, optimiser, key, step, totals
of the epoch) and the position in the data; metrics written after that step are dropped. What follows is then, on one
machine, bit for bit what it would have been without the interruption.

Vmapped seeds are one program, in which all arrays of theirs have a leading axis (see `train.seed_map`); each
has its folder, in which nothing tells that it was not alone but the speed.
"""

import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from posattn_jax.data.batches import Ordered, Resident, order_of
from posattn_jax.system.errors import InputError, RunError
from posattn_jax.system.processes import is_first
from posattn_jax.tasks.task import Task
from posattn_jax.train.bounds import Bounds, SpanBounds
from posattn_jax.train.clock import Clock, seconds_alive
from posattn_jax.train.dispatch import Dispatcher, Figures
from posattn_jax.train.evaluator import Evaluator
from posattn_jax.train.interruption import Interrupted, Interruption
from posattn_jax.train.member import Member
from posattn_jax.train.resident import ResidentData
from posattn_jax.train.seed_map import SeedMap
from posattn_jax.train.settings import Settings
from posattn_jax.train.sharding import bytes_of, num_shards, own_share
from posattn_jax.train.step import TrainState, abstract_state, init_state, plan_micro_batches
from posattn_jax.train.writers import Progress


class Trainer:
    """One run, or several vmapped seeds: their compiled functions, their state, and their folders."""

    def __init__(
        self,
        task: Task,
        optimizer: optax.GradientTransformation,
        members: Sequence[Member],
        mesh: Mesh,
        settings: Settings,
    ):
        self.task, self.mesh, self.settings, self.members = task, mesh, settings, members
        self._seeds = seeds = SeedMap(len(members))
        orders = [
            order_of(member.train_source, settings.batch_size, settings.accumulation_steps, member.seed)
            for member in members
        ]
        self.steps_per_epoch, self.examples_per_step = orders[0].steps_per_epoch, orders[0].examples_per_step
        self.eval_steps = settings.eval_steps or self.steps_per_epoch
        train_source, most = members[0].train_source, 1 if settings.bounded_spans else settings.dispatch_steps
        if isinstance(train_source, Ordered):
            most = 1
            if train_source.row_multiple % num_shards(mesh):
                needed = f"a divisor of {train_source.row_multiple}, the multiple that a batch has rows of"
                raise InputError(f"mesh.data x mesh.fsdp is {num_shards(mesh)}: expected {needed}")
            self.micro_batches = settings.accumulation_steps, settings.batch_size
        else:
            self.micro_batches = plan_micro_batches(settings.batch_size, settings.accumulation_steps, num_shards(mesh))

        self.abstract = abstract_state(task, optimizer, members[0].seed, mesh)  # of one
        self.num_parameters = sum(array.size for array in jax.tree.leaves(self.abstract.params))
        self._abstract_all = self.abstract
        if len(members) > 1:
            self._abstract_all = abstract_state(task, optimizer, members[0].seed, mesh, seeds)
        of_one, of_all = (_shardings(abstract) for abstract in (self.abstract, self._abstract_all))
        self._task_within = functools.cache(lambda bounds: task if bounds is None else task.within(bounds))
        resident = self._resident([member.train_source for member in members])
        self._resident_validation = self._resident([member.validation_source for member in members])
        for member, order in zip(members, orders, strict=True):
            member.name = f"seed {member.seed}: " if len(members) > 1 else ""
            member.read(order, self.micro_batches[0], own_share(mesh), resident is not None)
        self.dispatcher = Dispatcher(
            task,
            optimizer,
            [member.batches for member in members],
            mesh,
            self.micro_batches[0],
            settings.accumulation_steps,
            most,
            resident,
            of_all,
        )
        self._evaluator_within = functools.cache(
            lambda bounds: Evaluator(self._task_within(bounds), mesh, settings.eval_batch_size, seeds)
        )
        self._sigmas = jax.jit(  # of what `describe` makes the rest is not computed
            seeds.map(
                lambda params: {
                    block: {name: array for name, array in out.items() if name == "sigma"}
                    for block, out in task.describe(params).items()
                }
            ),
            out_shardings=NamedSharding(mesh, PartitionSpec()),  # every process has it whole
        )
        # Each as it is made for a run alone.
        self._init = lambda seed: jax.jit(lambda: init_state(task, optimizer, seed), out_shardings=of_one)()
        self._stack = jax.jit(lambda *states: seeds.stack(states), out_shardings=of_all)
        self._split = jax.jit(seeds.split, out_shardings=[of_one] * len(members))
        self._pending: list[tuple[int, int, Figures]] = []

    def _resident(self, sources: Sequence[Any]) -> ResidentData | None:
        """The sources on the devices, if these may hold them all."""
        if not all(isinstance(source, Resident) for source in sources):
            return None
        fits = sum(source.num_bytes for source in sources) <= self.settings.resident_mib * 2**20
        return ResidentData(sources, self.mesh) if fits else None

    def open(self, workdirs: Sequence[pathlib.Path], pretrained: Callable[[Any], Any] | None = None) -> None:
        """Takes up every run where its folder left it, or begins it, with what `pretrained` makes of fresh parameters.

        Raises:
          InputError: a run is already further than it shall go.
          RunError: none of a run's checkpoints can be read, or the runs are at different steps.
        """
        states = []
        for member, workdir in zip(self.members, workdirs, strict=True):
            state = member.open(workdir, self.abstract, self.settings.keep_checkpoints, self.settings.total_steps)
            if state is None:
                state = self._init(member.seed)
                if pretrained is not None:
                    params = jax.device_put(pretrained(state.params), _shardings(self.abstract.params))
                    state = state.replace(params=params)
            states.append(state)
        steps = [int(state.step) for state in states]
        if len(set(steps)) > 1:
            raise RunError(f"the runs are at different steps, {steps}: the same command lets those behind catch up")
        self.step = steps[0]
        self.state = states[0] if len(states) == 1 else self._stack(*states)
        self._bounds = SpanBounds(self.task, self.state.params, self._seeds) if self.settings.bounded_spans else None

    @property
    def _span_bounds(self) -> Bounds | None:
        return None if self._bounds is None else self._bounds.value

    @property
    def states(self) -> list[TrainState]:
        """That of each run."""
        return [self.state] if len(self.members) == 1 else self._split(self.state)

    @property
    def epoch(self) -> float:
        return self.step / self.steps_per_epoch

    def run(self, until: int | None = None) -> None:
        """Trains to the end; or to the step `until`, which is then saved, and evaluated where that is due anyway.

        Raises:
          RunError: the loss, its gradient, the parameters or the validation metrics are not finite.
          Interrupted: by SIGINT or SIGTERM, after saving.
        """
        settings = self.settings
        self._last = settings.total_steps if until is None else until
        if self.mesh.size > 1:
            whole, on_each = (size / 2**20 for size in bytes_of(self._abstract_all))
            print(f"parameters and optimiser: {whole:,.1f} MiB, {on_each:,.1f} on each of {self.mesh.size} devices")
        examples_per_step = self.examples_per_step * len(self.members)
        bar = Progress(settings.total_steps, self.step, examples_per_step, self.task.unit, silent=not is_first())
        try:
            with Interruption() as interruption:
                clock = Clock(self.step)
                while self.step < self._last:
                    self._update(clock)
                    if clock.compiling:
                        self._check()
                        bar.line(f"first update {seconds_alive():.1f} s after the start")
                        clock.start_rate(self.step)
                    evaluates = self.step % self.eval_steps == 0 or self.step == settings.total_steps
                    if evaluates or self.step % settings.log_steps == 0:
                        self._check()
                        self._log(clock)
                        bar.show(self.step, self.epoch, _mean([member.shown for member in self.members]))
                    if evaluates:
                        for line in self._evaluate(clock):
                            bar.line(line)
                        clock.start_rate(self.step)
                    elif settings.checkpoint_steps and self.step % settings.checkpoint_steps == 0:
                        self._save(clock)
                    if self.step < settings.total_steps and interruption.asked_at(self.step):
                        self._save(clock)
                        self._wait()
                        raise Interrupted(interruption.signum, self.step)
                if self.step < settings.total_steps:
                    self._save(clock)
                for member in self.members:
                    member.seconds += self._seconds(clock)
                self._wait()
        finally:
            bar.close()

    def close(self) -> None:
        for member in self.members:
            member.close()

    def _wait(self) -> None:
        for member in self.members:
            member.checkpoints.wait()

    def _update(self, clock: Clock) -> None:
        """The updates up to where something else is due, as many as are dispatched at once; the first one alone."""
        settings = self.settings
        due = [self._last - self.step]
        due += [n - self.step % n for n in (settings.log_steps, self.eval_steps, settings.checkpoint_steps) if n]
        count = 1 if clock.compiling else min(self.dispatcher.most, *due)
        self.state, figures = self.dispatcher(self.state, count, self._span_bounds, clock)
        if self._bounds is not None:
            self._bounds.follow(self.state.params)
        self._pending.append((self.step + 1, count, figures))
        self.step += count

    def _check(self) -> None:
        """Waits for the pending updates, and makes sure that all were finite."""
        for first, count, figures in jax.device_get(self._pending):
            for member, own in zip(self.members, self._seeds.split(figures), strict=True):
                member.check(first, {name: values[:count] for name, values in own.items()})
        self._pending.clear()

    def _log(self, clock: Clock) -> None:
        """Writes the speed and the share of time that went into waiting for data since the last time; and the spans."""
        unit, seconds, waiting = self.task.unit, self._seconds(clock), clock.waiting_share
        rate = clock.steps_per_second(self.step) * self.examples_per_step * len(self.members)
        clock.start_rate(self.step)
        task = self._task_within(self._span_bounds)
        sigmas = self._seeds.split(jax.device_get(self._sigmas(self.state.params)))
        for member, of_blocks in zip(self.members, sigmas, strict=True):
            speed = {f"{unit}_per_second": rate, "waiting_for_data": waiting, "seconds": member.seconds + seconds}
            member.write(self.step, self.epoch, "speed", speed)
            spans = task.spans(of_blocks, batch_size=self.micro_batches[1])
            for block, span in spans.items():
                for name, values in span.items():
                    flat = np.ravel(values).tolist()
                    figures = {f"{block}/{name}_{i}": value for i, value in enumerate(flat)}
                    member.write(self.step, self.epoch, "span", figures)
            if spans:
                shares = [share for span in spans.values() for share in span["score_share"]]
                member.shown["scores"] = float(np.mean(shares))
            member.shown |= {f"{unit}/s": rate, "waiting": waiting}

    def _evaluate(self, clock: Clock) -> list[str]:
        """Evaluates, writes what the updates since the last time brought, and saves; returns a line about each run."""
        totals = self._seeds.split(jax.device_get(self.state.totals))
        if self.step % self.eval_steps == 0:  # not where the run ends in between: it may be lengthened
            self.state = self.state.replace(totals=jax.tree.map(jnp.zeros_like, self.state.totals))
        evaluator = self._evaluator_within(self._span_bounds)
        sources = [member.validation_source for member in self.members]
        validations = evaluator.of_each(self.state.params, sources, self._resident_validation)
        score, lines = self.task.score, []
        for member, validation in zip(self.members, validations, strict=True):
            member.check_validation(self.step, validation)
        for member, own, validation in zip(self.members, totals, validations, strict=True):
            metrics = {"train": self.task.summarise(own), "validation": validation}
            for split, values in metrics.items():
                member.write(self.step, self.epoch, split, values)
            member.shown[score] = validation[score]
            lines.append(member.line(self.epoch, f"{self.task.unit}/s", metrics))
        self._save(clock, [validation[score] for validation in validations])
        return lines

    def _save(self, clock: Clock, scores: Sequence[float] | None = None) -> None:
        self._check()
        for i, (member, state) in enumerate(zip(self.members, self.states, strict=True)):
            member.save(state, self._seconds(clock), None if scores is None else scores[i])

    def _seconds(self, clock: Clock) -> float:
        """A run's share of the time since they were opened."""
        return clock.seconds / len(self.members)


def _shardings(abstract: Any) -> Any:
    return jax.tree.map(lambda array: array.sharding, abstract)


def _mean(figures: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([each[name] for each in figures])) for name in figures[0]}
