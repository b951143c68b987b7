"""Where arrays live on a mesh of devices: the only place that says so.

Axes of the mesh: `data` shares out examples; `fsdp` shares out examples and cuts parameters; `model` cuts heads and
hidden features. One device is the special case 1 x 1 x 1.
"""

import math
import re
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from posattn_jax.errors import InputError

AXES = ("data", "fsdp", "model")
BATCH_AXES = ("data", "fsdp")

# Path of a parameter -> the mesh axis of each of its last dimensions. An optimiser's moments have the same paths.
RULES = (
    (r"projections/kernel$", ("fsdp", None, "model", None)),
    (r"projections/bias$", (None, "model", None)),
    (r"attention/output/kernel$", ("model", None, "fsdp")),
    (r"feed_forward/hidden/kernel$", ("fsdp", "model")),
    (r"feed_forward/hidden/bias$", ("model",)),
    (r"feed_forward/output/kernel$", ("model", "fsdp")),
    (r"(mixing|cross)/(energies/\w+|value|gate/linear)/kernel$", ("fsdp", "model", None)),
    (r"(mixing|cross)/(energies/\w+|value|gate/linear)/bias$", ("model", None)),
    (r"(mixing|cross)/output/kernel$", ("model", None, "fsdp")),
    (r"(^|/)(source_|output_)?embedding/embedding$", ("model", "fsdp")),
    (r"(embed|head_\w+|linear)/kernel$", (None, "fsdp")),
    (r"siren/kernel_\d+$", (None, "fsdp")),
    (r"(values|terms_\d+)/(\w*matrices|matrix|relative|bases)$", ("fsdp", "model", None)),
    (r"values/up$", ("model", None, None)),
)


def make_mesh(data: int = -1, fsdp: int = 1, model: int = 1) -> Mesh:
    """A mesh over all devices; one axis may be -1: whatever is left.

    Raises:
      InputError: sizes whose product is not the number of devices.
    """
    sizes = [data, fsdp, model]
    num_devices = jax.device_count()
    known = math.prod(size for size in sizes if size != -1)
    if sizes.count(-1) == 1 and known > 0 and num_devices % known == 0:
        sizes[sizes.index(-1)] = num_devices // known
    if min(sizes) < 1 or math.prod(sizes) != num_devices:
        raise InputError(
            f"mesh.data={data}, mesh.fsdp={fsdp}, mesh.model={model}: their product is not the {num_devices} devices "
            "(one of them may be -1: what is left)"
        )
    # Auto: the compiler finds the sharding of what lies between; Explicit axes break tensor parallelism.
    return jax.make_mesh(tuple(sizes), AXES, axis_types=(AxisType.Auto,) * len(AXES))


def num_shards(mesh: Mesh) -> int:
    """How many shards a batch is cut into."""
    return math.prod(mesh.shape[axis] for axis in BATCH_AXES)


def state_sharding(state: Any, mesh: Mesh) -> Any:
    """The sharding of every array of a (possibly abstract) state, by the rules above; replicated where none applies."""

    def sharding(path, array) -> NamedSharding:
        name = "/".join(str(getattr(key, "key", getattr(key, "name", ""))) for key in path)
        for pattern, axes in RULES:
            if re.search(pattern, name):
                axes = (None,) * (array.ndim - len(axes)) + axes
                fits = [
                    axis if axis and size % mesh.shape[axis] == 0 else None
                    for axis, size in zip(axes, array.shape, strict=True)
                ]
                return NamedSharding(mesh, PartitionSpec(*fits))
        return NamedSharding(mesh, PartitionSpec())

    return jax.tree_util.tree_map_with_path(sharding, state)


def put_batch(batch: dict[str, np.ndarray], mesh: Mesh, axis: int = 0) -> dict[str, jax.Array]:
    """This process's part of a batch as global arrays, cut along `axis` over the examples' mesh axes."""
    sharding = NamedSharding(mesh, PartitionSpec(*(None,) * axis, BATCH_AXES))
    return {name: jax.make_array_from_process_local_data(sharding, array) for name, array in batch.items()}
