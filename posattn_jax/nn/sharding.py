"""Names of the parameters' axes, for users who split them over devices; and examples, split over those of a mesh.

For the names see `flax.linen.logical_axis_rules`.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
from jax import lax
from jax.nn.initializers import Initializer
from jax.sharding import AxisType, PartitionSpec

from posattn_jax.axes import Array
from posattn_jax.ops.attention import Problem

MATRIX = "width", "heads", None  # the axes of matrices [c h d]


class Named(nn.LogicallyPartitioned):
    """An array with named axes. The names constrain nothing: `DenseGeneral` unboxes kernels in another shape."""

    def unbox(self, apply_constraint: bool = True) -> Any:
        return self.value


def named(init: Initializer, *names: str | None) -> Initializer:
    """`flax.linen.with_logical_partitioning(init, names)` if logical axis rules are set, otherwise `init`.

    Without rules `module.init` returns plain arrays, as Flax's own modules do. With rules it returns arrays with names:

      with nn.logical_axis_rules((("width", "fsdp"), ("heads", "model"))):
          boxed = jax.eval_shape(module.init, key, inputs)
      specs = nn.get_partition_spec(boxed)

    An array that `init` itself has named keeps its names.

    Args:
      init: the initialiser of a parameter.
      *names: the names of its last axes: "width", "heads", "hidden" or "vocabulary". Axes named None, and all axes
        before the named ones, are never split.
    """

    return functools.partial(_initialise, init, names)


def _initialise(init: Initializer, names: tuple[str | None, ...], key, shape, *args, **kwargs) -> Any:
    array = init(key, shape, *args, **kwargs)
    if not names or not nn.get_logical_axis_rules() or isinstance(array, nn.meta.AxisMetadata):
        return array
    return Named(array, (None,) * (len(shape) - len(names)) + names)


# The axes of a mesh that examples are split over.
EXAMPLE_AXES = ("data", "fsdp")


def shared_out(features: Array) -> Array:
    """The features [b ...], split by example if there is a mesh. The compiler decides about the other axes.

    Parameters may be split along their width over an axis that also splits the examples. Without this constraint the
    compiler would then split the features along their width too, and copy every example to every device.
    """
    mesh = jax.sharding.get_abstract_mesh()
    axes = tuple(axis for axis in EXAMPLE_AXES if axis in mesh.axis_names)
    if not axes or features.shape[0] % math.prod(mesh.shape[axis] for axis in axes):
        return features
    free = (PartitionSpec.UNCONSTRAINED,) * (features.ndim - 1)
    return lax.with_sharding_constraint(features, PartitionSpec(axes, *free))


def example_axes(count: int) -> tuple[str, ...]:
    """The axes of the mesh in scope that `count` examples can be split over by hand; none if they do not divide it."""
    mesh = jax.sharding.get_abstract_mesh()
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    axes = tuple(axis for axis in EXAMPLE_AXES if kinds.get(axis) == AxisType.Auto and mesh.shape[axis] > 1)
    return () if count % math.prod(mesh.shape[axis] for axis in axes) else axes


def each_its_own(attend: Callable[[Problem], Any], problem: Problem) -> Any:
    """`attend(problem)`, where each device computes its own examples. The results have a row per example.

    Gradients of the arrays that examples share are then summed over the devices once. The compiler alone sums them in
    every step of an implementation's loop. With attention dropout it still does: a device cannot draw the random bits
    of its own examples only.
    """
    mesh, count = jax.sharding.get_abstract_mesh(), problem.query.shape[0]
    axes = example_axes(count)
    if not axes or problem.dropout_rate > 0:
        return attend(problem)
    # Include axes of one device: if all axes are included, kernels can be used, which the compiler cannot split.
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    cut = {axis for axis, size in mesh.shape.items() if axis in axes or (size == 1 and kinds[axis] == AxisType.Auto)}
    by_example = PartitionSpec(axes)
    each_of_its_own = jax.shard_map(
        attend,
        in_specs=jax.tree.map(lambda names: by_example if names.startswith("b") else PartitionSpec(), (problem.axes,)),
        out_specs=by_example,
        axis_names=cut,
        check_vma=False,  # the kernels of Pallas do not say how their results vary
    )
    return jax.jit(each_of_its_own)(problem)  # without jit it would refuse axes that the compiler controls
