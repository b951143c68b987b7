"""The examples of a batch stay on the devices of a mesh that share them out."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax.sharding import AxisType, PartitionSpec

from posattn_jax.axes import Array
from posattn_jax.ops.attention import Problem

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


# Of a problem: what has a row for each example, and what the examples share.
BY_EXAMPLE = ("query", "key", "value", "key_mask", "segment_ids", "mask", "pair_scores")
SHARED = ("relative_encoding", "content_bias", "position_bias", "relative_bias", "sigma")


def each_its_own(attend: Callable[[Problem], Any], problem: Problem) -> Any:
    """`attend(problem)`, whose results have a row for each example; devices that share out the examples compute theirs.

    Gradients of what the examples share are then summed over the devices once. The compiler by itself sums them in
    every step of a layout's loop. With attention dropout it still does: a device cannot draw the bits of its examples
    alone.
    """
    mesh, count = jax.sharding.get_abstract_mesh(), len(problem.query)
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    axes = tuple(axis for axis in EXAMPLE_AXES if kinds.get(axis) == AxisType.Auto and mesh.shape[axis] > 1)
    if not axes or count % math.prod(mesh.shape[axis] for axis in axes) or problem.dropout_rate > 0:
        return attend(problem)
    own = {name: x for name in BY_EXAMPLE if (x := getattr(problem, name)) is not None}
    shared = {name: x for name in SHARED if (x := getattr(problem, name)) is not None}
    if problem.factors is not None:
        shared["kernel"] = problem.factors.kernel
    # An axis of one device is cut as well: where all are, kernels can be used, which the compiler cannot cut.
    cut = {axis for axis, size in mesh.shape.items() if axis in axes or (size == 1 and kinds[axis] == AxisType.Auto)}
    if "mask" in own and len(own["mask"]) < count:  # one for all
        shared["mask"] = own.pop("mask")
    by_example = PartitionSpec(axes)

    def of_own(own: dict[str, Array], shared: dict[str, Array]) -> Any:
        arrays = own | shared
        if problem.factors is not None:
            arrays["factors"] = problem.factors._replace(kernel=arrays.pop("kernel"))
        return attend(dataclasses.replace(problem, **arrays))

    each_of_its_own = jax.shard_map(
        of_own,
        in_specs=(by_example, PartitionSpec()),
        out_specs=by_example,
        axis_names=cut,
        check_vma=False,  # the loops begin with zeros, which are the same on every device
    )
    return jax.jit(each_of_its_own)(own, shared)  # untraced it would refuse axes that are the compiler's
