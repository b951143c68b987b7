"""The gate of averaged values, and functions of the values before the average (Schmidt 2023, section 2.3)."""

from collections.abc import Callable
from typing import ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jax import lax
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike

from posattn_jax.axes import Array, Features, Float, Query, Value
from posattn_jax.nn.layers import to_heads
from posattn_jax.ops.initial import XAVIER
from posattn_jax.ops.precision import times


def exact_gelu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """x Phi(x), where Phi is the normal distribution function; not the usual approximation by tanh."""
    return nn.gelu(x, approximate=False)


def tanh_gelu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """x (1 + tanh(sqrt(2 / pi) (x + .044715 x^3))) / 2, the usual approximation of `exact_gelu`."""
    return nn.gelu(x, approximate=True)


class NormalizedGelu(nn.Module):
    """LN(gelu(v)), over the features of all heads: the values of a gated average (equation 4).

    Attributes:
      activation: the function instead of gelu.
      layer_norm_epsilon: the epsilon of LN.
      dtype: the dtype of the computation; None follows the values.
      param_dtype: the dtype of the parameters.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import NormalizedGelu
      >>> values, variables = NormalizedGelu().init_with_output(jax.random.key(0), jnp.ones((1, 5, 2, 4)))
      >>> values.shape
      (1, 5, 2, 4)
    """

    width_factor: ClassVar[int] = 1

    activation: Callable = exact_gelu
    layer_norm_epsilon: float = 1e-6
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, value: Value) -> Value:
        flat = lax.collapse(self.activation(value), 2)
        norm = nn.LayerNorm(self.layer_norm_epsilon, dtype=self.dtype, param_dtype=self.param_dtype, name="norm")
        return norm(flat).reshape(value.shape)


def latent_weights(gate: Query, value: Value, values: NormalizedGelu) -> Float[Array, "b t s h d"]:
    """beta, the weights that a gate and normalised values add to alpha, a feature each (Schmidt 2023, section 3).

      beta_ts = g_t f_s gelu(v_s) / v_s,  f_s = 1 / sqrt(var(gelu(v_s)) + epsilon)
      c_t = a sum_s alpha_ts beta_ts v_s + g_t (b - a sum_s alpha_ts f_s mean(gelu(v_s)))    for LN's a, b

    This is equation 18 without its approximation gelu(v) / v = sigmoid(1.702 v). If the alpha of a query do not add up
    to 1, b is multiplied by their sum.

    Args:
      gate: g [b t h d], after its activation.
      value: v [b s h d], before `values`.
      values: the function of the values.
    """
    safe = jnp.where(jnp.abs(value) < 1e-6, 1e-6, value)
    variance = jnp.var(values.activation(value), axis=(-2, -1), keepdims=True)
    of_key = values.activation(safe) / safe / jnp.sqrt(variance + values.layer_norm_epsilon)
    return gate[:, :, None] * of_key[:, None]


class Glu(nn.Module):
    """a sigmoid(b), for values v = (a, b) that are twice as wide in each head: LightConv's (equation 14; Dauphin 2017).

    Example:
      >>> import jax.numpy as jnp
      >>> from posattn_jax import Glu
      >>> Glu().apply({}, jnp.ones((1, 5, 2, 8))).shape
      (1, 5, 2, 4)
    """

    width_factor: ClassVar[int] = 2

    def __call__(self, value: Float[Array, "b s h _"]) -> Value:
        return nn.glu(value, axis=-1)


class GeluGate(nn.Module):
    """c_t * gelu(W_g y_t), for the `gate` slot (equation 4).

    Attributes:
      activation: the function instead of gelu.
      kernel_init: the initialiser of W_g, as a matrix [c, h d].
      bias_init: the initialiser of its bias.
      dtype, param_dtype: the dtypes of the computation, where None follows the inputs, and of the parameters.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import GeluGate, TokenMixing
      >>> layer = TokenMixing(num_heads=2, gate=GeluGate())
      >>> outputs, variables = layer.init_with_output(jax.random.key(0), jnp.ones((1, 5, 8)), (5,))
      >>> jax.tree.map(jnp.shape, variables["params"]["gate"])
      {'linear': {'bias': (2, 4), 'kernel': (8, 2, 4)}}
    """

    activation: Callable = exact_gelu
    kernel_init: Initializer = XAVIER
    bias_init: Initializer = nn.initializers.zeros
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, inputs: Features, outputs: Query) -> Query:
        dtypes = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        gate = to_heads(outputs.shape[2:], self.kernel_init, self.bias_init, name="linear", **dtypes)
        return times(outputs, self.activation(gate(inputs)))
