"""Metrics and predictions of a model on all examples of a source."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from posattn_jax.data.pipeline.batches import Source, evaluation_batches
from posattn_jax.nn.sharding import EXAMPLE_AXES
from posattn_jax.tasks.task import Batch, Task, Totals
from posattn_jax.train.seed_map import ALONE, SeedMap
from posattn_jax.train.sharding import ResidentData, num_shards, own_share, put_batch


class Evaluator:
    """Computes metrics or predictions on all examples of a source, without dropout."""

    def __init__(self, task: Task, mesh: Mesh, batch_size: int, seeds: SeedMap = ALONE):
        self.task, self.mesh, self._seeds = task, mesh, seeds
        self.batch_size = -(-batch_size // num_shards(mesh)) * num_shards(mesh)
        self._replicated = NamedSharding(mesh, PartitionSpec())
        self._step = jax.jit(self._seeds.map(self._add), out_shardings=self._replicated)
        self._steps = jax.jit(self._of_resident, static_argnums=(1, 2), out_shardings=self._replicated)

    def __call__(self, params: Any, source: Source, resident: ResidentData | None = None) -> dict[str, float]:
        """The metrics of a source. With `resident` data, all batches run in a single dispatch."""
        return self.of_each(params, [source], resident)[0]

    def of_each(
        self, params: Any, sources: Sequence[Source], resident: ResidentData | None = None
    ) -> list[dict[str, float]]:
        """The metrics of every vmapped seed on its own source. All sources have the same size."""
        size, several = len(sources[0]), self._seeds.size > 1
        with jax.set_mesh(self.mesh):
            if resident is not None:
                totals = self._steps(params, resident, size, resident.arrays)
            else:
                zero = self._seeds.stack([self.task.zero_totals() for _ in sources])
                totals = jax.device_put(zero, self._replicated)
                readers = [evaluation_batches(source, self.batch_size, own_share(self.mesh)) for source in sources]
                for batches in zip(*readers, strict=True):
                    batch = put_batch(self._seeds.stack(batches), self.mesh, axis=int(several))
                    totals = self._step(params, batch, totals)
        return [self.task.summarise(each) for each in self._seeds.split(jax.device_get(totals))]

    def predictions(self, params: Any, source: Source) -> np.ndarray:
        """The prediction of `task.predict` for every example [n], in order."""
        predict = jax.jit(self.task.predict, out_shardings=self._replicated)
        batches = evaluation_batches(source, self.batch_size, own_share(self.mesh))
        predictions = [np.asarray(predict(params, put_batch(batch, self.mesh))) for batch in batches]
        return np.concatenate(predictions)[: len(source)]

    def _add(self, params: Any, batch: Batch, totals: Totals) -> Totals:
        """Adds a batch's totals to those so far. Traced."""
        return jax.tree.map(jnp.add, totals, self.task.loss(params, batch)[1])

    def _of_resident(self, params, resident, num_examples, arrays):
        """The totals of device-resident examples, in the same batches as those of `evaluation_batches`."""

        def of_one(params, arrays):
            def body(i, totals):
                ids = i * self.batch_size + jnp.arange(self.batch_size)
                ids = lax.with_sharding_constraint(ids, NamedSharding(self.mesh, PartitionSpec(EXAMPLE_AXES)))
                batch = resident.read(arrays, jnp.minimum(ids, num_examples - 1))
                weights = (ids < num_examples).astype(jnp.float32)
                return self._add(params, batch | {"weights": weights}, totals)

            num_batches = -(-num_examples // self.batch_size)
            return lax.fori_loop(0, num_batches, body, self.task.zero_totals())

        return self._seeds.map(of_one)(params, arrays)
