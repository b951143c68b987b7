"""The examples of a source, device-resident."""

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from posattn_jax.data.batches import Resident
from posattn_jax.tasks.task import Batch
from posattn_jax.train.seed_map import SeedMap


class ResidentData:
    """All examples of a source, or of one a seed, whole on every device.

    Attributes:
      arrays: the source's `table`; with several sources [source, ...].
    """

    def __init__(self, sources: Sequence[Resident], mesh: Mesh):
        self._read = sources[0].read
        everywhere = NamedSharding(mesh, PartitionSpec())
        table = SeedMap(len(sources)).stack([source.table() for source in sources])
        self.arrays = {name: jax.device_put(array, everywhere) for name, array in table.items()}

    @classmethod
    def of(cls, sources: Sequence[Any], mesh: Mesh, most_mib: int) -> "ResidentData | None":
        """The sources on the devices, if these can be there and take no more; else None."""
        if not all(isinstance(source, Resident) for source in sources):
            return None
        return cls(sources, mesh) if sum(source.num_bytes for source in sources) <= most_mib * 2**20 else None

    def read(self, arrays: dict[str, jax.Array], ids: jax.Array) -> Batch:
        """The batch of these ids of one source, traced."""
        return self._read({name: array[ids] for name, array in arrays.items()})
