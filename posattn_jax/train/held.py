"""Examples that devices hold."""

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from posattn_jax.data.batches import Resident
from posattn_jax.train.step import Batch


class Held:
    """All examples of a source, whole on every device.

    Attributes:
      arrays: the source's `table`.
    """

    def __init__(self, source: Resident, mesh: Mesh):
        self._read = source.read
        everywhere = NamedSharding(mesh, PartitionSpec())
        self.arrays = {name: jax.device_put(array, everywhere) for name, array in source.table().items()}

    def read(self, arrays: dict[str, jax.Array], ids: jax.Array) -> Batch:
        """The batch of these ids, traced."""
        return self._read({name: array[ids] for name, array in arrays.items()})
