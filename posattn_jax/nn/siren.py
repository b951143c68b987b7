"""Sinusoidal representation networks, and an encoding of relative positions by one."""

import dataclasses

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike

from posattn_jax.axes import Array, Float, RelativeEncoding
from posattn_jax.nn.encodings import within_reach
from posattn_jax.nn.sharding import named
from posattn_jax.nn.tokens import Tokens
from posattn_jax.ops import grid
from posattn_jax.ops.precision import float32_or_better
from posattn_jax.ops.siren import Layer, SineBias, bias_initializer, kernel_initializer, layer_sizes, siren


class Siren(nn.Module):
    """h_1 = sin(w_initial (x W_1 + b_1)), h_l = sin(w (h_{l-1} W_l + b_l)), y = h_{L-1} W_L + b_L.

    Initialisation (Sitzmann 2020, as Alfons 2022 uses it): W_1 from U(+-1 / fan_in), hidden W_l from
    U(+-sqrt(6 / fan_in) / w), W_L from U(+-sqrt(3 / fan_in)) (Kaiming), b = 0.

    Attributes:
      features: the width of y.
      hidden_features: the width of every h; None: as `features`.
      num_layers: L, at least 2.
      omega: w, the frequency of the hidden layers.
      omega_initial: w_initial, which sets the frequencies over [-1, 1].
      bias_init: "zeros", or "ckconv": b_i from U(+-pi / `|W_i|`) in the sine layers, W_i the weights of unit i, so
        that the phases are spread (Romero 2021, CKConv).
      learn_omega: whether w and w_initial are trained (Alfons 2022, section 8).
      param_dtype: the dtype of the parameters. The computation, and trained w and w_initial, are float32 or better,
        because sines of large arguments need it.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import Siren
      >>> coordinates = jnp.linspace(-1, 1, 10)[:, None]
      >>> features, variables = Siren(features=4).init_with_output(jax.random.key(0), coordinates)
      >>> features.shape
      (10, 4)
    """

    features: int
    hidden_features: int | None = None
    num_layers: int = 3
    omega: float = 10.0
    omega_initial: float = 10.0
    bias_init: SineBias = "zeros"
    learn_omega: bool = False
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "... p"]) -> Float[Array, "... c"]:
        layers = []
        fields = self.hidden_features, self.num_layers, self.omega, self.omega_initial
        for number, sizes in enumerate(layer_sizes(x.shape[-1], self.features, *fields), 1):
            omega = sizes.omega
            if omega is not None and self.learn_omega:
                dtype = float32_or_better(self.param_dtype)
                omega = self.param(f"omega_{number}", nn.initializers.constant(omega), (), dtype)
            init = named(kernel_initializer(sizes), None, "width")
            kernel = self.param(f"kernel_{number}", init, (sizes.fan_in, sizes.features), self.param_dtype)
            init = bias_initializer(self.bias_init, sizes, kernel)
            bias = self.param(f"bias_{number}", init, (sizes.features,), self.param_dtype)
            layers.append(Layer(kernel, bias, omega))
        return siren(x, layers)


class SirenEncoding(nn.Module, kw_only=True):
    """E[s - t] = SIREN(x), where x is the normalised n-D offset (Alfons 2022, Algorithms 4 and 5).

    Every layer that uses it has a network of its own. The network's outputs are split into heads. Attributes are those
    of `Siren`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import SirenEncoding, Tokens
      >>> encoding, small = SirenEncoding(hidden_features=8), Tokens(jnp.ones((1, 3 * 5, 8)), (3, 5), num_heads=2)
      >>> table, variables = encoding.init_with_output(jax.random.key(0), small)
      >>> table.shape  # [*R h d]
      (5, 9, 2, 4)
      >>> large = Tokens(jnp.ones((1, 6 * 10, 8)), (6, 10), num_heads=2)
      >>> encoding.apply(variables, large).shape  # the same parameters on another grid
      (11, 19, 2, 4)
    """

    hidden_features: int | None = None
    num_layers: int = 3
    omega: float = 10.0
    omega_initial: float = 10.0
    bias_init: SineBias = "zeros"
    learn_omega: bool = False
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, tokens: Tokens) -> RelativeEncoding:
        """E [*R, h, d], perhaps 0 at offsets that no query reaches; distances are in units of the reference grid."""
        coordinates = grid.relative_coordinates(tokens.table_shape, tokens.reference_shape, tokens.query_grid_shape)
        own = [field.name for field in dataclasses.fields(self) if field.name not in ("parent", "name")]
        fields = {name: getattr(self, name) for name in own}
        network = Siren(tokens.num_heads * tokens.head_dim, **fields, name="siren")
        encoding = within_reach(network, coordinates, tokens)
        return encoding.reshape(*encoding.shape[:-1], tokens.num_heads, tokens.head_dim)
