"""Initialisers of parameters, for Linen and NNX modules alike."""

import functools

import jax
import jax.numpy as jnp
from jax.nn import initializers
from jax.nn.initializers import Initializer

XAVIER = initializers.xavier_uniform()
NORMAL = initializers.normal(0.02)
STANDARD_NORMAL = initializers.normal(1.0)

# For a fused kernel [c 3 h d]: Xavier with the fans c and 3 h d, and U(+-1 / sqrt(c)).
fused_xavier = initializers.xavier_uniform(in_axis=0, out_axis=(1, 2, 3))
fan_in = initializers.variance_scaling(1 / 3, "fan_in", "uniform", in_axis=0, out_axis=(1, 2, 3))


def uniform(bound: float) -> Initializer:
    """U(-bound, bound), whatever the shape."""
    return functools.partial(_uniform, bound)


def _uniform(bound, key, shape, dtype=None, out_sharding=None):
    return jax.random.uniform(key, shape, dtype or jnp.float32, -bound, bound, out_sharding=out_sharding)


def scaled_identity(scale: float) -> Initializer:
    """scale I, for shapes [... p p]."""

    def init(key, shape, dtype=None, out_sharding=None):
        return jnp.broadcast_to(scale * jnp.eye(shape[-1], dtype=dtype), shape)

    return init
