"""What the axes of parameters are called, for those who cut them over devices (`flax.linen.logical_axis_rules`)."""

import functools
from typing import Any

import flax.linen as nn
from jax.nn.initializers import Initializer

MATRIX = "width", "heads", None  # of matrices [c h d]


class Named(nn.LogicallyPartitioned):
    """An array and the names of its axes, which constrain nothing: `DenseGeneral` unboxes kernels in another shape."""

    def unbox(self, apply_constraint: bool = True) -> Any:
        return self.value


def named(init: Initializer, *names: str | None) -> Initializer:
    """`flax.linen.with_logical_partitioning(init, names)` where logical axis rules are set, and elsewhere `init`.

    So `module.init` gives plain arrays, as Flax's own modules do, and to those who have rules for names it gives them:

      with nn.logical_axis_rules((("width", "fsdp"), ("heads", "model"))):
          boxed = jax.eval_shape(module.init, key, inputs)
      specs = nn.get_partition_spec(boxed)

    An array that `init` has named itself keeps its names.

    Args:
      init: of a parameter.
      *names: of its last axes, "width", "heads", "hidden" or "vocabulary"; None, as all axes before them: never cut.
    """

    return functools.partial(_initialise, init, names)


def _initialise(init: Initializer, names: tuple[str | None, ...], key, shape, *args, **kwargs) -> Any:
    array = init(key, shape, *args, **kwargs)
    if not names or not nn.get_logical_axis_rules() or isinstance(array, nn.meta.AxisMetadata):
        return array
    return Named(array, (None,) * (len(shape) - len(names)) + names)
