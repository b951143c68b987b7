"""Names of the parameters' axes, for users who split them over devices (`flax.linen.logical_axis_rules`)."""

import functools
from typing import Any

import flax.linen as nn
from jax.nn.initializers import Initializer

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
