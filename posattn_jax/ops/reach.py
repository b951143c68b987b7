"""Evaluates an encoding only at the offsets that some query's span reaches."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from posattn_jax.axes import Array, Float, Int, Shape, Sizes
from posattn_jax.ops import grid
from posattn_jax.ops.precision import aligned
from posattn_jax.system.compat import get_default_device

# If the reach is known only at run time, E is evaluated up to the first of these shares of the grid that contains it.
SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)
# Accelerators evaluate E at all offsets if there are at most so many: to evaluate some, the host waits for the reach,
# and the results of every share are copied.
ACCELERATOR_OFFSETS = 4096


def within_reach(
    function: Callable,
    operands: Any,
    features: Float[Array, "*r k"],
    table_shape: Shape,
    reach: Shape | Int[Array, "p"] | None,
) -> Float[Array, "*r c"]:
    """function(operands, features) for the offsets within `reach` of 0, and 0 at others: [*R, k] -> [*R, c].

    Args:
      function: acts on every offset by itself. What is traced for it serves all functions that are equal: those of the
        layers of a model.
      operands: its arrays, such as parameters.
      features: the features of the offsets.
      table_shape: the grid that has these offsets.
      reach: half-spans, static or known at run time; None: all of the grid.
    """
    if reach is None:
        return function(operands, features)
    far = tuple(size - 1 for size in table_shape)
    if not isinstance(reach, Array):
        return _within(function, operands, features, far, tuple(map(min, reach, far)))
    if get_default_device().platform != "cpu" and grid.num_positions(features.shape[:-1]) <= ACCELERATOR_OFFSETS:
        return function(operands, features)
    halves, index = shares(reach, far)
    return _one_of(function, operands, features, far, tuple(map(tuple, halves.tolist())), index)


def shares(reach: Int[Array, "p"], far: Shape) -> tuple[np.ndarray, Int[Array, ""]]:
    """The half-spans of `SHARES` of a grid that reaches as `far`, and the index of the first that contains `reach`."""
    halves = np.unique(np.ceil(np.outer(SHARES, far)).astype(int), axis=0)
    enough = jnp.all(jnp.less_equal(*aligned(reach, halves)), axis=-1)
    return halves, jnp.argmax(enough)


def _within(function: Callable, operands: Any, features: Array, far: Sizes, half: Sizes) -> Array:
    encoding = function(operands, grid.centre(features, half))
    return jnp.pad(encoding, [*((f - h, f - h) for f, h in zip(far, half, strict=True)), (0, 0)])


@functools.partial(jax.jit, static_argnums=(0, 3, 4))
def _one_of(
    function: Callable, operands: Any, features: Array, far: Sizes, halves: tuple[Sizes, ...], index: Array
) -> Array:
    # Recomputed for the gradient: whatever one branch keeps for it, all others write as zeros.
    branches = [jax.checkpoint(functools.partial(_within, function, far=far, half=half)) for half in halves]
    return lax.switch(index, branches, operands, features)
