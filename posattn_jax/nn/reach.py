"""Evaluating an encoding only at the offsets that some query's span reaches."""

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from posattn_jax.axes import Array, Float
from posattn_jax.nn.tokens import Tokens
from posattn_jax.ops import grid

# Where the reach is known only at run time, E is evaluated to the first of these shares of the grid that holds it.
SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)


def within_reach(module: nn.Module, features: Float[Array, "*r k"], tokens: Tokens) -> Float[Array, "*r c"]:
    """module(features) for the offsets within `reach` of 0, and 0 at others: [*R, k] -> [*R, c]."""
    far, reach = np.subtract(tokens.table_shape, 1), tokens.reach

    def evaluate(half):
        half = np.minimum(half, far)

        def branch(module, features):
            encoding = module(grid.centre(features, half.tolist()))
            return jnp.pad(encoding, [*((f - h, f - h) for f, h in zip(far, half, strict=True)), (0, 0)])

        return branch

    if reach is None or module.scope is None or module.is_initializing():
        return module(features)
    if not isinstance(reach, Array):
        return evaluate(np.array(reach))(module, features)
    halves = np.unique(np.ceil(np.outer(SHARES, far)).astype(int), axis=0)
    enough = jnp.all(reach <= jnp.asarray(halves), axis=-1)
    return nn.switch(jnp.argmax(enough), [evaluate(half) for half in halves], module, features)
