"""Evaluates an encoding only at the offsets that some query's span reaches."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.backend import get_default_device

from posattn_jax.axes import Array, Float, Int, Shape
from posattn_jax.ops import grid
from posattn_jax.ops.precision import aligned

# If the reach is known only at run time, E is evaluated up to the first of these shares of the grid that contains it.
SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)
# Accelerators evaluate E at all offsets if there are at most so many: to evaluate some, the host waits for the reach,
# and the results of every share are copied.
ACCELERATOR_OFFSETS = 4096


def _switch(index: Array, branches: list[Callable], function: Callable, features: Array) -> Array:
    return lax.switch(index, [lambda x, branch=branch: branch(function, x) for branch in branches], features)


def within_reach(
    function: Callable,
    features: Float[Array, "*r k"],
    table_shape: Shape,
    reach: Shape | Int[Array, "p"] | None,
    switch: Callable[..., Any] = _switch,
) -> Float[Array, "*r c"]:
    """function(features) for the offsets within `reach` of 0, and 0 at others: [*R, k] -> [*R, c].

    Args:
      function: a function that acts on every offset by itself.
      features: the features of the offsets.
      table_shape: the grid that has these offsets.
      reach: half-spans, static or known at run time; None: all of the grid.
      switch: called with (index, branches, function, features): `lax.switch`, in the form that `function` needs if it
        is a module of a library.
    """
    far = np.subtract(table_shape, 1)

    def evaluate(half):
        half = np.minimum(half, far)

        def branch(function, features):
            encoding = function(grid.centre(features, half.tolist()))
            return jnp.pad(encoding, [*((f - h, f - h) for f, h in zip(far, half, strict=True)), (0, 0)])

        return branch

    if reach is None:
        return function(features)
    if not isinstance(reach, Array):
        return evaluate(np.array(reach))(function, features)
    if get_default_device().platform != "cpu" and grid.num_positions(features.shape[:-1]) <= ACCELERATOR_OFFSETS:
        return function(features)
    halves = np.unique(np.ceil(np.outer(SHARES, far)).astype(int), axis=0)
    enough = jnp.all(jnp.less_equal(*aligned(reach, halves)), axis=-1)
    return switch(jnp.argmax(enough), [evaluate(half) for half in halves], function, features)
