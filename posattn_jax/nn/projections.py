"""From features to queries, keys and values: the `projections` slot of attention."""

from typing import Literal, get_args

import flax.linen as nn
import jax.numpy as jnp
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike

from posattn_jax.axes import Features, Key, Query, Value

Part = Literal["query", "key", "value"]
PARTS: tuple[Part, ...] = get_args(Part)

# Of a fused kernel [c 3 h d]: over its whole fan c + 3 h d, or U(+-1 / sqrt(c)).
fused_xavier = nn.initializers.xavier_uniform(in_axis=0, out_axis=(1, 2, 3))
fan_in = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform", in_axis=0, out_axis=(1, 2, 3))


class LinearProjections(nn.Module):
    """One fused linear map c -> (3, h, d), Xavier-uniform over its whole fan c + 3 h d (as the code of Alfons 2022).

    Attributes:
      use_bias: whether q, k and v have biases (Algorithm 1 prints none, the code has them).
      kernel_init: of the fused kernel [c, 3, h, d].
      bias_init: of the fused bias [3, h, d].
      dtype: of the computation; None follows the inputs.
      param_dtype: of the parameters.
    """

    use_bias: bool = True
    kernel_init: Initializer = fused_xavier
    bias_init: Initializer = nn.initializers.zeros
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, inputs: Features, num_heads: int, head_dim: int, parts: tuple[Part, ...] = PARTS
    ) -> tuple[Query | None, Key | None, Value | None]:
        """Query, key and value; None for those that are not among `parts`, of which there are no parameters either."""
        if not parts:
            return None, None, None
        shape = (len(parts), num_heads, head_dim)
        kernel = self.param("kernel", self.kernel_init, (inputs.shape[-1], *shape), self.param_dtype)
        bias = self.param("bias", self.bias_init, shape, self.param_dtype) if self.use_bias else None
        inputs, kernel, bias = nn.dtypes.promote_dtype(inputs, kernel, bias, dtype=self.dtype)
        fused = jnp.einsum("btc,cnhd->nbthd", inputs, kernel)
        if bias is not None:
            fused += bias[:, None, None]
        made = dict(zip(parts, fused, strict=True))
        return made.get("query"), made.get("key"), made.get("value")
