"""From features to queries, keys and values: the `projections` slot of attention."""

import flax.linen as nn
import jax.numpy as jnp
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike

from posattn_jax.axes import Features, Key, Query, Value


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
    kernel_init: Initializer = nn.initializers.xavier_uniform(in_axis=0, out_axis=(1, 2, 3))
    bias_init: Initializer = nn.initializers.zeros
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, inputs: Features, num_heads: int, head_dim: int) -> tuple[Query, Key, Value]:
        shape = (3, num_heads, head_dim)
        kernel = self.param("kernel", self.kernel_init, (inputs.shape[-1], *shape), self.param_dtype)
        bias = self.param("bias", self.bias_init, shape, self.param_dtype) if self.use_bias else None
        inputs, kernel, bias = nn.dtypes.promote_dtype(inputs, kernel, bias, dtype=self.dtype)
        fused = jnp.einsum("btc,cnhd->nbthd", inputs, kernel)
        if bias is not None:
            fused += bias[:, None, None]
        query, key, value = fused
        return query, key, value
