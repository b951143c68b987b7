"""Tokens for parts that ask for nothing but the grid and the heads."""

import math

import jax.numpy as jnp

from posattn_jax.nn.tokens import Tokens


def made_tokens(num_heads, head_dim, grid_shape, **fields):
    """Tokens of zeros on a grid."""
    return Tokens(
        jnp.zeros((1, math.prod(grid_shape), num_heads * head_dim)), grid_shape, num_heads, head_dim, **fields
    )
