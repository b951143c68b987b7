"""The dense layer of the papers' code, with its initialisation, and a dropout with few random bits."""

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from posattn_jax.axes import Array, Shape
from posattn_jax.nn.sharding import MATRIX, named
from posattn_jax.ops.dropout import dropout
from posattn_jax.ops.initial import uniform


def to_heads(heads: Shape, kernel_init: Initializer, bias_init: Initializer, **fields: Any) -> nn.DenseGeneral:
    """[... c] -> [... h d]; weights are initialised as a matrix [c, h d]."""
    inits = {"kernel_init": named(kernel_init, *MATRIX), "bias_init": named(bias_init, "heads", None)}
    return nn.DenseGeneral(heads, **inits, **fields)


def from_heads(width: int, kernel_init: Initializer, **fields: Any) -> nn.DenseGeneral:
    """[... h d] -> [... c]; weights are initialised as a matrix [h d, c]."""
    return nn.DenseGeneral(width, axis=(-2, -1), kernel_init=named(kernel_init, "heads", None, "width"), **fields)


def linear(features: int, fan_in: int, names: tuple[str | None, ...] = (), **fields: Any) -> nn.Dense:
    """`flax.linen.Dense` with weights and bias drawn from U(-1 / sqrt(fan_in), 1 / sqrt(fan_in)).

    Args:
      features: the output width.
      fan_in: the input width.
      names: the names of the weights' axes, see `named`.
      **fields: fields of `flax.linen.Dense`: dtype, param_dtype, name, ...; kernel_init and bias_init replace the
        defaults.
    """
    init = uniform(1 / math.sqrt(fan_in))
    kernel_init, bias_init = fields.pop("kernel_init", init), fields.pop("bias_init", init)
    of_bias = () if names[-1:] == ("width",) else names[-1:]  # as wide as the model: too small to be split
    return nn.Dense(features, kernel_init=named(kernel_init, *names), bias_init=named(bias_init, *of_bias), **fields)


def dropout_rngs(rng: Array | None) -> dict[str, Array] | None:
    """The rngs of a model's `apply` for one key of dropout, or for keys [m] of m equal shares of the examples."""
    if rng is None:
        return None
    is_one = rng.ndim == (0 if jnp.issubdtype(rng.dtype, jax.dtypes.prng_key) else 1)  # also as numbers [2]
    keys = rng[None] if is_one else rng
    return {_rng_name(i): keys[i] for i in range(len(keys))}


def _rng_name(share: int) -> str:
    return f"dropout_{share}" if share else "dropout"


class Dropout(nn.Module):
    """As `flax.linen.Dropout`, but it draws a quarter of the random bits: see `ops.dropout.dropout`.

    With the rngs of m keys, see `dropout_rngs`, each of m equal shares of the examples is as it would be alone.

    Attributes:
      rate: the share that is dropped, rounded to a 256th.
    """

    rate: float

    @nn.compact
    def __call__(self, inputs: Array, deterministic: bool) -> Array:
        """Applies dropout with a key of the rng "dropout", unless `deterministic`."""
        if deterministic or self.rate == 0:
            return inputs
        keys = [self.make_rng(_rng_name(0))]
        while self.has_rng(_rng_name(len(keys))):
            keys.append(self.make_rng(_rng_name(len(keys))))
        if len(keys) == 1:
            return dropout(inputs, keys[0], self.rate)
        shares = inputs.reshape(len(keys), -1, *inputs.shape[1:])
        return jax.vmap(dropout, (0, 0, None))(shares, jnp.stack(keys), self.rate).reshape(inputs.shape)
