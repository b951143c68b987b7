"""Sinusoidal representation networks (Sitzmann 2020), as functions of their arrays."""

import math
import operator
from collections.abc import Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.nn import initializers
from jax.nn.initializers import Initializer

from posattn_jax.axes import Array, Float
from posattn_jax.ops.initial import uniform
from posattn_jax.ops.precision import float32_or_better, plus, same_dtype, times
from posattn_jax.system.errors import check

SineBias = Literal["zeros", "ckconv"]


class Layer(NamedTuple):
    """The kernel W, the bias b and the frequency w of a layer; w is None in the last layer."""

    kernel: Float[Array, "i o"]
    bias: Float[Array, "o"]
    omega: float | Float[Array, ""] | None = None


class LayerSizes(NamedTuple):
    """The sizes and initial values of a layer: W is from U(+-bound), and the frequency w is None in the last layer."""

    fan_in: int
    features: int
    bound: float
    omega: float | None


def siren(x: Float[Array, "... p"], layers: Sequence[Layer]) -> Float[Array, "... c"]:
    """h_l = sin(w_l (h_{l-1} W_l + b_l)), without the sine in the last layer; in float32 or better."""
    for kernel, bias, omega in layers:
        x = plus(jnp.matmul(*same_dtype(x, kernel.astype(float32_or_better(kernel)))), bias)
        x = x if omega is None else jnp.sin(times(omega, x))
    return x


def layer_sizes(
    num_inputs: int,
    features: int,
    hidden_features: int | None = None,
    num_layers: int = 3,
    omega: float = 10.0,
    omega_initial: float = 10.0,
) -> list[LayerSizes]:
    """The sizes of every layer. The bounds are 1 / fan_in, then sqrt(6 / fan_in) / w, and sqrt(3 / fan_in) in the last.

    Raises:
      ValueError: fewer than two layers, a width of less than 1, or a frequency that is 0 or not finite.
    """
    if not hasattr(num_layers, "__index__") or num_layers < 2:
        raise ValueError(f"num_layers={num_layers!r}: a SIREN has at least 2")
    for name, value in (("omega", omega), ("omega_initial", omega_initial)):
        check(name, value, lambda x: 0 < abs(x) < math.inf, "a finite number other than 0")
    hidden = features if hidden_features is None else hidden_features
    check("hidden_features", hidden, lambda x: operator.index(x) >= 1, "at least 1")
    first = LayerSizes(num_inputs, hidden, 1 / num_inputs, omega_initial)
    middle = LayerSizes(hidden, hidden, math.sqrt(6 / hidden) / omega, omega)
    return [first, *[middle] * (num_layers - 2), LayerSizes(hidden, features, math.sqrt(3 / hidden), None)]


def kernel_initializer(sizes: LayerSizes) -> Initializer:
    """U(+-bound)."""
    return uniform(sizes.bound)


def bias_initializer(bias_init: SineBias, sizes: LayerSizes, kernel: Float[Array, "i o"]) -> Initializer:
    """Biases of 0; in sine layers with "ckconv", b_i from U(+-pi / |W_i|), W_i the weights of unit i (Romero 2021).

    Raises:
      ValueError: another `bias_init`.
    """
    if bias_init not in ("zeros", "ckconv"):
        raise ValueError(f'bias_init="{bias_init}": expected "zeros" or "ckconv"')
    if bias_init == "zeros" or sizes.omega is None:
        return initializers.zeros
    bound = math.pi / jnp.linalg.norm(kernel.astype(float32_or_better(kernel)), axis=0)

    def init(key, shape, dtype=jnp.float32, out_sharding=None):
        return (jax.random.uniform(key, shape, minval=-1, maxval=1) * bound).astype(dtype)

    return init
