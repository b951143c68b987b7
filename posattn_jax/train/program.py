"""The compiled functions of training, for one seed or for several vmapped seeds."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grain
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from posattn_jax.data.pipeline.batches import Ordered, order_of, training_batches
from posattn_jax.ops.span import bound_for
from posattn_jax.system.errors import InputError
from posattn_jax.tasks.task import Batch, Task
from posattn_jax.train.clock import Clock
from posattn_jax.train.evaluator import Evaluator
from posattn_jax.train.seed_map import ALONE, SeedData, SeedMap
from posattn_jax.train.settings import Settings
from posattn_jax.train.sharding import ResidentData, num_shards, own_share, put_batch
from posattn_jax.train.step import TrainState, abstract_state, init_state, make_train_step, plan_micro_batches

Figures = dict[str, jax.Array]
Bounds = tuple[tuple[int, ...], ...]


class SpanBounds:
    """Static bounds of every block's span, chosen on the host, where a loop of run-time length is slow.

    A program is compiled for every set of bounds that occurs. These are few, because bounds are rounded up to a few
    sizes (see `ops.span.bound_for`). They follow the parameters with a delay of one update. A bound is enlarged before
    a span exceeds it: it leaves room for one position, and a change of the span is seen two updates late, in which Adam
    moves the span by far less than that. If a bound were exceeded all the same, the loss would be NaN and the run would
    stop. Vmapped seeds share the bounds of their largest spans.
    """

    def __init__(self, task: Task, params: Any, seeds: SeedMap = ALONE):
        self._half_spans = jax.jit(seeds.map(task.half_spans))
        self._seen = self._half_spans(params)
        self.value: Bounds = ()
        self.follow(params)

    def follow(self, params: Any) -> None:
        """Updates the bounds by the spans of the previous call's `params`, which are known without waiting."""
        halves = [tuple(np.atleast_2d(half).max(0).astype(int).tolist()) for half in self._seen]
        previous = self.value or [None] * len(halves)
        self.value = tuple(bound_for(half, old) for half, old in zip(halves, previous, strict=True))
        self._seen = self._half_spans(params)


# The most updates in a dispatch, where settings leave it open. A batch of resident data is ids, which are small.
DISPATCHED_RESIDENT, DISPATCHED_COPIED = 64, 16


class Program:
    """The functions of training, without the state and the folders.

    Up to `most` updates are dispatched at once. For given span bounds, a single compiled function makes any number of
    them, so the results do not depend on where a run was stopped.

    Attributes:
      task: the task to optimise.
      data: the examples of each seed.
      mesh: the mesh of devices.
      settings: how long to train, and in what batches.
      seeds: the map over vmapped seeds.
      micro_batches: the number of micro-batches of an update, and the examples in each.
      most: the largest number of updates in a dispatch. It is 1 if span bounds follow the updates, or if batches have
        several shapes.
      abstract: the shapes, dtypes and shardings of one seed's state.
      abstract_all: those of the state of all seeds.
      orders: the order of the examples of each seed.
      steps_per_epoch, examples_per_step: the updates of an epoch and the examples of an update, for one seed.
      stack: a function from the states of the seeds to the state of all.
      split: its inverse.
      sigmas: a function from the parameters of all seeds to the sigma of each block.

    Raises:
      InputError: the mesh does not divide the batches, or a batch is larger than the data.
    """

    def __init__(
        self,
        task: Task,
        optimizer: optax.GradientTransformation,
        data: Sequence[SeedData],
        mesh: Mesh,
        settings: Settings,
    ):
        self.task, self.mesh, self.settings, self.data = task, mesh, settings, data
        self._optimizer, self.seeds, train_source = optimizer, SeedMap(len(data)), data[0].train_source
        self.micro_batches = _micro_batches(train_source, mesh, settings)
        self.orders = [
            order_of(each.train_source, settings.batch_size, settings.accumulation_steps, each.seed) for each in data
        ]
        self._datasets = [each.dataset() for each in self.orders]  # fails early, before a run folder exists
        self.steps_per_epoch, self.examples_per_step = self.orders[0].steps_per_epoch, self.orders[0].examples_per_step
        resident = functools.partial(ResidentData.of, mesh=mesh, most_mib=settings.resident_mib)
        self._resident = resident([each.train_source for each in data])
        self._resident_validation = resident([each.validation_source for each in data])
        chosen = DISPATCHED_COPIED if self._resident is None else DISPATCHED_RESIDENT
        is_one_by_one = settings.bounds_spans or isinstance(train_source, Ordered)
        self.most = 1 if is_one_by_one else settings.dispatch_steps or chosen

        self.abstract = self.abstract_all = abstract_state(task, optimizer, mesh)
        if len(data) > 1:
            self.abstract_all = abstract_state(task, optimizer, mesh, self.seeds)
        self._of_one, self._of_all = (
            jax.tree.map(lambda array: array.sharding, abstract) for abstract in (self.abstract, self.abstract_all)
        )
        self._everywhere = NamedSharding(mesh, PartitionSpec())  # replicated
        # The key is an argument, so that all seeds, and all runs that differ in it alone, share one program.
        self._init = jax.jit(lambda rng: init_state(task, optimizer, rng), out_shardings=self._of_one)
        self.stack = jax.jit(lambda states: self.seeds.stack(states), out_shardings=self._of_all)
        self.split = jax.jit(self.seeds.split, out_shardings=[self._of_one] * len(data))
        self.sigmas = jax.jit(self.seeds.map(self._sigmas), out_shardings=self._everywhere)
        self.within = functools.cache(lambda bounds: task if bounds is None else task.within(bounds))
        self.updates = functools.cache(self._compile)
        self._evaluator = functools.cache(
            lambda bounds: Evaluator(self.within(bounds), mesh, settings.eval_batch_size, self.seeds)
        )

    def init(self, seed: int, start: Callable[[Any], Any] | None = None) -> TrainState:
        """A fresh state of a single run. `start`, if given, is applied to its parameters."""
        state = self._init(jax.random.key(seed))
        if start is None:
            return state
        return state.replace(params=jax.device_put(start(state.params), self._of_one.params))

    def batches(self, i: int) -> grain.DatasetIterator:
        """The training batches of the i-th seed, in order. If the data are device-resident, they have only the ids."""
        of_ids = self._resident is not None
        read = (lambda ids: {"ids": ids.astype(np.int32)}) if of_ids else self.data[i].train_source.batch
        return training_batches(
            read, self._datasets[i], self.micro_batches[0], own_share(self.mesh), reads_ahead=not of_ids
        )

    def update(
        self, state: TrainState, batches: Sequence[Iterator[Any]], count: int, bounds: Bounds | None, clock: Clock
    ) -> tuple[TrainState, Figures]:
        """Makes the next `count` updates; returns the state and the figures.

        Each figure is an array [most], of which the first `count` entries are valid. With vmapped seeds, state and
        figures have a leading axis.
        """
        with jax.set_mesh(self.mesh):
            return self.updates(bounds)(*self.arguments(state, batches, count, clock))

    def arguments(
        self, state: TrainState, batches: Sequence[Iterator[Any]], count: int, clock: Clock
    ) -> tuple[Any, ...]:
        """The arguments of the compiled `updates`: reads the examples of the next `count` updates onto the devices."""
        with clock.waiting():
            read = [[next(each) for _ in range(count)] for each in batches]
        stacked = self.seeds.stack([self._block(each) for each in read])
        placed = put_batch(stacked, self.mesh, axis=2 if self.seeds.size == 1 else 3)
        return state, placed, count, None if self._resident is None else self._resident.arrays

    def evaluate(self, params: Any, bounds: Bounds | None) -> list[dict[str, float]]:
        """The metrics of each seed on its validation data."""
        sources = [each.validation_source for each in self.data]
        return self._evaluator(bounds).of_each(params, sources, self._resident_validation)

    def _sigmas(self, params: Any) -> dict[str, dict[str, jax.Array]]:
        """The sigma of each block. Traced, so that the other results of `describe` are not computed."""
        blocks = self.task.describe(params)
        return {name: {"sigma": out["sigma"]} if "sigma" in out else {} for name, out in blocks.items()}

    def _block(self, read: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """The batches that a seed reads for up to `most` updates, as arrays [most, micro-batches, examples, ...]."""
        read = read + read[-1:] * (self.most - len(read))  # padding, which is not used
        return {
            name: np.stack([batch[name] for batch in read]).reshape(
                self.most, self.micro_batches[0], -1, *array.shape[1:]
            )
            for name, array in read[0].items()
        }

    def _compile(self, bounds: Bounds | None) -> Any:
        """Compiles the updates of a dispatch for all seeds, within these span bounds."""
        update = self.seeds.map(functools.partial(self._updates, self.within(bounds)), (0, 0, None, 0))
        return jax.jit(update, out_shardings=(self._of_all, self._everywhere), donate_argnums=0)

    def _updates(
        self, task: Task, state: TrainState, batches: Batch, count: Any, arrays: Any
    ) -> tuple[TrainState, Figures]:
        """Makes the first `count` updates of the given batches. Traced."""
        read = None if self._resident is None else functools.partial(self._resident.read, arrays)
        settings = self.settings
        update = make_train_step(task, self._optimizer, settings.accumulation_steps, read, settings.merges_batches)
        first = jax.tree.map(lambda array: array[0], batches)
        if self.most == 1:
            state, figures = update(state, first)
            return state, jax.tree.map(lambda figure: figure[None], figures)

        def body(i, carry):
            state, figures = carry
            state, new = update(state, jax.tree.map(lambda array: array[i], batches))
            return state, jax.tree.map(lambda kept, figure: kept.at[i].set(figure), figures, new)

        _, shapes = jax.eval_shape(update, state, first)
        figures = jax.tree.map(lambda figure: jnp.zeros((self.most, *figure.shape), figure.dtype), shapes)
        return lax.fori_loop(0, count, body, (state, figures))


def _micro_batches(source: Any, mesh: Mesh, settings: Settings) -> tuple[int, int]:
    """The number of micro-batches of an update, and the size of each: in examples, or in the unit of `Ordered` data."""
    if not isinstance(source, Ordered):
        count, size = plan_micro_batches(settings.batch_size, settings.accumulation_steps, num_shards(mesh))
        return (1, count * size) if settings.merges_batches else (count, size)
    if source.row_multiple % num_shards(mesh):
        needed = f"a divisor of {source.row_multiple}, the multiple that a batch has rows of"
        raise InputError(f"mesh.data x mesh.fsdp is {num_shards(mesh)}: expected {needed}")
    return settings.accumulation_steps, settings.batch_size
