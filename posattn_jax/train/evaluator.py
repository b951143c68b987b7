"""What a model has to say of a whole source: its metrics, or its predictions."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from posattn_jax.data.batches import Source, evaluation_batches
from posattn_jax.nn.examples import EXAMPLE_AXES
from posattn_jax.train.held import Held
from posattn_jax.train.sharding import num_shards, own_share, put_batch
from posattn_jax.train.step import Task, make_eval_step


class Evaluator:
    """Means over a whole source, without dropout."""

    def __init__(self, task: Task, mesh: Mesh, batch_size: int):
        self.task, self.mesh = task, mesh
        self.batch_size = -(-batch_size // num_shards(mesh)) * num_shards(mesh)
        self._replicated = NamedSharding(mesh, PartitionSpec())
        self._step = jax.jit(make_eval_step(task), out_shardings=self._replicated)
        self._steps = jax.jit(self._of_held, static_argnums=(1, 2), out_shardings=self._replicated)

    def __call__(self, params: Any, source: Source, held: Held | None = None) -> dict[str, float]:
        """The metrics of a source; of one that the devices hold in one dispatch."""
        with jax.set_mesh(self.mesh):
            if held is not None:
                totals = self._steps(params, held, len(source), held.arrays)
            else:
                totals = jax.device_put(self.task.zero_totals(), self._replicated)
                for batch in evaluation_batches(source, self.batch_size, own_share(self.mesh)):
                    totals = self._step(params, put_batch(batch, self.mesh), totals)
        return self.task.summarise(jax.device_get(totals))

    def _of_held(self, params, held, num_examples, arrays):
        """As `evaluation_batches` divides them."""

        def body(i, totals):
            ids = i * self.batch_size + jnp.arange(self.batch_size)
            ids = lax.with_sharding_constraint(ids, NamedSharding(self.mesh, PartitionSpec(EXAMPLE_AXES)))
            batch = held.read(arrays, jnp.minimum(ids, num_examples - 1))
            weights = (ids < num_examples).astype(jnp.float32)
            return make_eval_step(self.task)(params, batch | {"weights": weights}, totals)

        num_batches = -(-num_examples // self.batch_size)
        return lax.fori_loop(0, num_batches, body, self.task.zero_totals())


def predictions(task: Any, mesh: Mesh, batch_size: int, params: Any, source: Source) -> np.ndarray:
    """What `task.predict` tells of every example [n], in order."""
    batch_size = -(-batch_size // num_shards(mesh)) * num_shards(mesh)
    predict = jax.jit(task.predict, out_shardings=NamedSharding(mesh, PartitionSpec()))
    batches = evaluation_batches(source, batch_size, own_share(mesh))
    return np.concatenate([np.asarray(predict(params, put_batch(batch, mesh))) for batch in batches])[: len(source)]
