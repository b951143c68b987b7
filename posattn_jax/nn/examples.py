"""The examples of a batch stay on the devices of a mesh that share them out."""

import math

import jax
from jax import lax
from jax.sharding import PartitionSpec

from posattn_jax.axes import Array

# Of a mesh: the axes that share out examples.
EXAMPLE_AXES = ("data", "fsdp")


def shared_out(features: Array) -> Array:
    """The features [b ...], cut by examples where there is a mesh; the other axes are the compiler's choice.

    Where parameters are cut along their width by an axis that shares out examples, the compiler would otherwise cut
    the features likewise, and copy every example to every device.
    """
    mesh = jax.sharding.get_abstract_mesh()
    axes = tuple(axis for axis in EXAMPLE_AXES if axis in mesh.axis_names)
    if not axes or len(features) % math.prod(mesh.shape[axis] for axis in axes):
        return features
    free = (PartitionSpec.UNCONSTRAINED,) * (features.ndim - 1)
    return lax.with_sharding_constraint(features, PartitionSpec(axes, *free))
