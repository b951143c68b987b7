"""Sinusoidal representation networks, and an encoding of relative positions by one."""

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from posattn_jax.axes import Array, Float, RelativeEncoding
from posattn_jax.nn.tokens import Tokens
from posattn_jax.ops import grid
from posattn_jax.ops.precision import float32_or_better
from posattn_jax.ops.reach import within_reach
from posattn_jax.ops.siren import Layer, SineBias, bias_initializer, kernel_initializer, layer_sizes, siren


class Siren(nnx.Module):
    """h_1 = sin(w_initial (x W_1 + b_1)), h_l = sin(w (h_{l-1} W_l + b_l)), y = h_{L-1} W_L + b_L (Sitzmann 2020).

    The initialisation and the fields are those of the Linen module, `posattn_jax.Siren`.

    Args:
      in_features: p, the width of x.
      features: the width of y.
      hidden_features: the width of every h; None: as `features`.
      num_layers: L, at least 2.
      omega: w, the frequency of the hidden layers.
      omega_initial: w_initial, the frequency of the first layer.
      bias_init: "zeros", or "ckconv".
      learn_omega: whether w and w_initial are trained.
      param_dtype: the dtype of the parameters.
      rngs: the rngs, of which "params" is used.

    Raises:
      ValueError: fewer than two layers, a frequency of 0, or another `bias_init`.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from posattn_jax.nnx import Siren
      >>> network = Siren(1, 4, rngs=nnx.Rngs(0))
      >>> network(jnp.linspace(-1, 1, 10)[:, None]).shape
      (10, 4)
    """

    def __init__(
        self,
        in_features: int,
        features: int,
        *,
        hidden_features: int | None = None,
        num_layers: int = 3,
        omega: float = 10.0,
        omega_initial: float = 10.0,
        bias_init: SineBias = "zeros",
        learn_omega: bool = False,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ):
        sizes = layer_sizes(in_features, features, hidden_features, num_layers, omega, omega_initial)
        self.omegas = tuple(size.omega for size in sizes)
        self.learn_omega = learn_omega
        for number, size in enumerate(sizes, 1):
            if learn_omega and size.omega is not None:
                dtype = float32_or_better(param_dtype)
                setattr(self, f"omega_{number}", nnx.Param(jnp.asarray(size.omega, dtype)))
            shape = size.fan_in, size.features
            kernel = kernel_initializer(size)(rngs.params(), shape, param_dtype)
            bias = bias_initializer(bias_init, size, kernel)(rngs.params(), shape[1:], param_dtype)
            setattr(self, f"kernel_{number}", nnx.Param(kernel))
            setattr(self, f"bias_{number}", nnx.Param(bias))

    def __call__(self, x: Float[Array, "... p"]) -> Float[Array, "... c"]:
        """y, in float32 or better."""
        return siren(x, [self._layer(number, omega) for number, omega in enumerate(self.omegas, 1)])

    def _layer(self, number: int, omega: float | None) -> Layer:
        kernel, bias = (getattr(self, f"{name}_{number}")[...] for name in ("kernel", "bias"))
        learned = self.learn_omega and omega is not None
        return Layer(kernel, bias, getattr(self, f"omega_{number}")[...] if learned else omega)


class SirenEncoding(nnx.Module):
    """E[s - t] = SIREN(x), where x is the normalised n-D offset (Alfons 2022, Algorithms 4 and 5).

    Args:
      num_dims: p, the dimensions of the grid.
      num_heads: h of the layer.
      head_dim: d of the layer.
      hidden_features, num_layers, omega, omega_initial, bias_init, learn_omega, param_dtype, rngs: as in `Siren`.

    Raises:
      ValueError: as in `Siren`.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from posattn_jax import Tokens
      >>> from posattn_jax.nnx import SirenEncoding
      >>> encoding = SirenEncoding(2, num_heads=2, head_dim=4, rngs=nnx.Rngs(0))
      >>> encoding(Tokens(jnp.ones((1, 3 * 5, 8)), (3, 5), num_heads=2)).shape  # [*R h d]
      (5, 9, 2, 4)
    """

    def __init__(
        self,
        num_dims: int,
        num_heads: int,
        head_dim: int,
        *,
        hidden_features: int | None = None,
        num_layers: int = 3,
        omega: float = 10.0,
        omega_initial: float = 10.0,
        bias_init: SineBias = "zeros",
        learn_omega: bool = False,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ):
        self.num_dims, self.num_heads, self.head_dim = num_dims, num_heads, head_dim
        self.siren = Siren(
            num_dims,
            num_heads * head_dim,
            hidden_features=hidden_features,
            num_layers=num_layers,
            omega=omega,
            omega_initial=omega_initial,
            bias_init=bias_init,
            learn_omega=learn_omega,
            param_dtype=param_dtype,
            rngs=rngs,
        )

    def __call__(self, tokens: Tokens) -> RelativeEncoding:
        """E [*R, h, d], perhaps 0 at offsets that no query reaches; distances are in units of the reference grid."""
        tokens.check_fits(self, num_dims=self.num_dims, num_heads=self.num_heads, head_dim=self.head_dim)
        coordinates = grid.relative_coordinates(tokens.table_shape, tokens.reference_shape)
        encoding = within_reach(self.siren, coordinates, tokens.table_shape, tokens.reach)
        return encoding.reshape(*encoding.shape[:-1], self.num_heads, self.head_dim)
