"""How arrays are sharded over a mesh of devices. No other module decides this.

Axes of the mesh: `data` splits the examples. `fsdp` splits the examples and shards parameters. `model` shards heads,
hidden features and the vocabulary. `grid` splits the positions of an example, along the first dimension of their grid.
A single device is the special case 1 x 1 x 1 x 1.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from posattn_jax.data.pipeline.batches import Resident, Share
from posattn_jax.nn.sharding import EXAMPLE_AXES
from posattn_jax.system.errors import InputError
from posattn_jax.tasks.task import Batch
from posattn_jax.train.seed_map import SeedMap

AXES = ("data", "fsdp", "model", "grid")

# Name of a parameter's axis (`nn.axis_names`) -> the axis of the mesh that cuts it.
RULES = (("width", "fsdp"), ("heads", "model"), ("hidden", "model"), ("vocabulary", "model"))


@dataclasses.dataclass(frozen=True)
class MeshAxes:
    """The number of devices along each axis of the mesh. One of them may be -1: all devices that are left.

    Attributes:
      data, fsdp, model: the sizes of these axes.
      grid: the size of the axis that splits the first dimension of attention's grid; for classification with a span.
    """

    data: int = -1
    fsdp: int = 1
    model: int = 1
    grid: int = 1

    def make(self) -> Mesh:
        """The mesh over all devices. Raises InputError if the product of the sizes is not their number."""
        sizes, num_devices = [getattr(self, axis) for axis in AXES], jax.device_count()
        given = ", ".join(f"mesh.{axis}={size}" for axis, size in zip(AXES, sizes, strict=True))
        known = math.prod(size for size in sizes if size != -1)
        if sizes.count(-1) == 1 and known > 0 and num_devices % known == 0:
            sizes[sizes.index(-1)] = num_devices // known
        if min(sizes) < 1 or math.prod(sizes) != num_devices:
            raise InputError(
                f"{given}: expected a product of {num_devices}, the number of devices (one may be -1: the rest)"
            )
        # Auto: the compiler finds the sharding of intermediate arrays. Explicit axes break tensor parallelism.
        return jax.make_mesh(tuple(sizes), AXES, axis_types=(AxisType.Auto,) * len(AXES))


def num_shards(mesh: Mesh) -> int:
    """The number of shards of a batch."""
    return math.prod(mesh.shape[axis] for axis in EXAMPLE_AXES)


def own_share(mesh: Mesh) -> Share:
    """The shards of a batch that this process's devices hold."""
    devices = mesh.devices.reshape(num_shards(mesh), -1)
    own = [i for i, copies in enumerate(devices) if any(d.process_index == jax.process_index() for d in copies)]
    return Share(tuple(own), num_shards(mesh))


def sharded(boxed: Any, mesh: Mesh) -> Any:
    """Gives shardings to the arrays of an abstract state, whose parameters are boxed with the names of their axes.

    An axis that the mesh does not divide is not sharded, nor is an array without names.
    """

    def place(box: Any) -> jax.ShapeDtypeStruct:
        array = nn.unbox(box)
        cut = tuple(nn.logical_to_mesh_axes(box.names, RULES) or ()) if is_box(box) else ()
        axes = (None,) * (array.ndim - len(cut)) + cut  # vmapped seeds have a leading axis
        pairs = zip(axes, array.shape, strict=True)
        spec = PartitionSpec(*(axis if axis and size % mesh.shape[axis] == 0 else None for axis, size in pairs))
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=NamedSharding(mesh, spec))

    return jax.tree.map(place, boxed, is_leaf=is_box)


def is_box(tree: Any) -> bool:
    """Whether this is a parameter boxed with the names of its axes."""
    return isinstance(tree, nn.meta.AxisMetadata)


def bytes_of(state: Any) -> tuple[int, int]:
    """The bytes of an abstract state with shardings: of the whole state, without copies, and on each device."""
    whole = on_each = 0
    for array in jax.tree.leaves(state):
        whole += array.size * array.dtype.itemsize
        on_each += math.prod(array.sharding.shard_shape(array.shape)) * array.dtype.itemsize
    return whole, on_each


def put_batch(batch: dict[str, np.ndarray], mesh: Mesh, axis: int = 0) -> dict[str, jax.Array]:
    """Turns this process's part of a batch into global arrays, sharded along `axis` over the mesh axes of examples.

    If an array has a next axis, it is that of the positions, which is sharded over `grid` if that divides it. A process
    has all positions of its examples.
    """
    share = own_share(mesh)

    def put(array: np.ndarray) -> jax.Array:
        positions = array.shape[axis + 1 : axis + 2]
        cut = ["grid" if size % mesh.shape["grid"] == 0 else None for size in positions]
        sharding = NamedSharding(mesh, PartitionSpec(*(None,) * axis, EXAMPLE_AXES, *cut))
        rows = array.shape[axis] // len(share.shards)

        def of_device(where: Any) -> np.ndarray:
            own = share.shards.index((where[axis].start or 0) // rows)
            return array[(*where[:axis], slice(own * rows, (own + 1) * rows), *where[axis + 1 :])]

        shape = (*array.shape[:axis], rows * share.num_shards, *array.shape[axis + 1 :])
        return jax.make_array_from_callback(shape, sharding, of_device)

    return {name: put(array) for name, array in batch.items()}


class ResidentData:
    """All examples of a source, or of one source per seed, replicated on every device.

    Attributes:
      arrays: the source's `table`. With several sources, the arrays have a leading axis for the source.
    """

    def __init__(self, sources: Sequence[Resident], mesh: Mesh):
        self._read = sources[0].read
        everywhere = NamedSharding(mesh, PartitionSpec())
        table = SeedMap(len(sources)).stack([source.table() for source in sources])
        self.arrays = {name: jax.device_put(array, everywhere) for name, array in table.items()}

    @classmethod
    def of(cls, sources: Sequence[Any], mesh: Mesh, most_mib: int) -> "ResidentData | None":
        """Puts the sources on the devices; None if one is not `Resident`, or if they take more than `most_mib`."""
        if not all(isinstance(source, Resident) for source in sources):
            return None
        return cls(sources, mesh) if sum(source.num_bytes for source in sources) <= most_mib * 2**20 else None

    def read(self, arrays: dict[str, jax.Array], ids: jax.Array) -> Batch:
        """The batch of the examples with these ids, of one source. Traced."""
        return self._read({name: array[ids] for name, array in arrays.items()})
