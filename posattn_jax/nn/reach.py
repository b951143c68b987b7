"""Evaluates a module only at the offsets that some query's span reaches."""

import flax.linen as nn

from posattn_jax.axes import Array, Float
from posattn_jax.nn.tokens import Tokens
from posattn_jax.ops import reach


def within_reach(module: nn.Module, features: Float[Array, "*r k"], tokens: Tokens) -> Float[Array, "*r c"]:
    """As `ops.reach.within_reach`: [*R, k] -> [*R, c]. During initialisation the module is evaluated at all offsets."""
    if module.scope is None or module.is_initializing():
        return module(features)
    return reach.within_reach(module, features, tokens.table_shape, tokens.reach, nn.switch)
