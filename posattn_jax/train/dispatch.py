"""Updates as the device gets them: several in one dispatch, from examples that are read ahead or that it holds."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from posattn_jax.tasks.task import Batch, Task
from posattn_jax.train.bounds import Bounds
from posattn_jax.train.clock import Clock
from posattn_jax.train.resident import ResidentData
from posattn_jax.train.seed_map import SeedMap
from posattn_jax.train.sharding import put_batch
from posattn_jax.train.step import TrainState, make_train_step

Figures = dict[str, jax.Array]


class Dispatcher:
    """The updates of one seed, or of several vmapped, in blocks of `most` or fewer.

    One `program` of given bounds of the spans serves blocks of every size, so that what is computed does not depend on
    where a run was stopped.

    Args:
      task: what is optimised.
      optimizer: by what.
      batches: of each run, what is read of its examples: see `training_batches`.
      mesh: of devices.
      num_micro_batches: how many an update has.
      accumulation_steps: see `make_train_step`.
      most: the updates of a block.
      resident: the examples on the devices; None: they are read ahead, and sent.
      shardings: of the state.
    """

    def __init__(
        self,
        task: Task,
        optimizer: optax.GradientTransformation,
        batches: Sequence[Iterator[Any]],
        mesh: Mesh,
        num_micro_batches: int,
        accumulation_steps: int,
        most: int,
        resident: ResidentData | None,
        shardings: Any,
    ):
        self.most = most
        self._batches, self._mesh, self._num_micro_batches = batches, mesh, num_micro_batches
        self._resident, self._seeds = resident, SeedMap(len(batches))

        def updates(task: Task, state: TrainState, batches: Batch, count: Any, arrays: Any):
            def update(state: TrainState, batch: Batch) -> tuple[TrainState, Figures]:
                read = None if resident is None else functools.partial(resident.read, arrays)
                return make_train_step(task, optimizer, accumulation_steps, read)(state, batch)

            first = jax.tree.map(lambda array: array[0], batches)
            if most == 1:
                state, figures = update(state, first)
                return state, jax.tree.map(lambda figure: figure[None], figures)

            def body(i, carry):
                state, figures = carry
                state, new = update(state, jax.tree.map(lambda array: array[i], batches))
                return state, jax.tree.map(lambda kept, figure: kept.at[i].set(figure), figures, new)

            _, shapes = jax.eval_shape(update, state, first)
            figures = jax.tree.map(lambda figure: jnp.zeros((most, *figure.shape), figure.dtype), shapes)
            return lax.fori_loop(0, count, body, (state, figures))

        everywhere = NamedSharding(mesh, PartitionSpec())  # every process has it whole
        self.program = functools.cache(
            lambda bounds: jax.jit(
                self._seeds.map(
                    functools.partial(updates, task if bounds is None else task.within(bounds)), (0, 0, None, 0)
                ),
                out_shardings=(shardings, everywhere),
                donate_argnums=0,
            )
        )

    def arguments(self, state: TrainState, count: int, clock: Clock) -> tuple[Any, ...]:
        """Those of `program`, for the next `count` updates, whose examples are read and placed on the devices."""
        with clock.waiting():
            read = [[next(batches) for _ in range(count)] for batches in self._batches]
        stacked = self._seeds.stack([self._block(each) for each in read])
        placed = put_batch(stacked, self._mesh, axis=2 if self._seeds.size == 1 else 3)
        return state, placed, count, None if self._resident is None else self._resident.arrays

    def __call__(
        self, state: TrainState, count: int, bounds: Bounds | None, clock: Clock
    ) -> tuple[TrainState, Figures]:
        """The next `count` updates: the state, and their figures, each [most], of which the first `count` count.

        Of several runs both have a leading axis.
        """
        with jax.set_mesh(self._mesh):
            return self.program(bounds)(*self.arguments(state, count, clock))

    def _block(self, read: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """What a run reads for some updates, as arrays [most, micro-batches, examples, ...]."""
        read = read + read[-1:] * (self.most - len(read))  # which are not met
        return {
            name: np.stack([batch[name] for batch in read]).reshape(
                self.most, self._num_micro_batches, -1, *array.shape[1:]
            )
            for name, array in read[0].items()
        }
