"""What a model has to say of a whole source: its metrics, or its predictions."""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from posattn_jax.data.batches import Source, evaluation_batches
from posattn_jax.train.sharding import num_shards, own_share, put_batch
from posattn_jax.train.step import Task, make_eval_step


class Evaluator:
    """Means over a whole source, without dropout."""

    def __init__(self, task: Task, mesh: Mesh, batch_size: int):
        self.task, self.mesh = task, mesh
        self.batch_size = -(-batch_size // num_shards(mesh)) * num_shards(mesh)
        self._replicated = NamedSharding(mesh, PartitionSpec())
        self._step = jax.jit(make_eval_step(task), out_shardings=self._replicated)

    def __call__(self, params: Any, source: Source) -> dict[str, float]:
        totals = jax.device_put(self.task.zero_totals(), self._replicated)
        for batch in evaluation_batches(source, self.batch_size, own_share(self.mesh)):
            with jax.set_mesh(self.mesh):
                totals = self._step(params, put_batch(batch, self.mesh), totals)
        return self.task.summarise(jax.device_get(totals))


def predictions(task: Any, mesh: Mesh, batch_size: int, params: Any, source: Source) -> np.ndarray:
    """What `task.predict` tells of every example [n], in order."""
    batch_size = -(-batch_size // num_shards(mesh)) * num_shards(mesh)
    predict = jax.jit(task.predict, out_shardings=NamedSharding(mesh, PartitionSpec()))
    batches = evaluation_batches(source, batch_size, own_share(mesh))
    return np.concatenate([np.asarray(predict(params, put_batch(batch, mesh))) for batch in batches])[: len(source)]
