"""The learned attention span."""

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike

from posattn_jax.axes import Array
from posattn_jax.ops.span import SpanMode


class GaussianSpan(nn.Module):
    """A trained sigma for every positional dimension (Alfons 2022, section 3.6).

    Attributes:
      threshold: keys outside the box where the Gaussian falls below it are not attended; 0 or less: no mask.
      mode: "multiply" (the paper) or "log_add" (adds ln G, so that far keys fade out instead of towards score 0).
      initial_sigma: the starting value, in units of the grid's S - 1.
      per_head: whether every head has a sigma of its own (ours).
      param_dtype: of sigma.
    """

    threshold: float = 0.1
    mode: SpanMode = "multiply"
    initial_sigma: float = 0.3
    per_head: bool = False
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, num_heads: int, num_dims: int) -> dict[str, Array | float | str]:
        """Arguments of `relative_attention`: sigma [p] or [h p], threshold and span_mode."""
        shape = (num_heads, num_dims) if self.per_head else (num_dims,)
        sigma = self.param("sigma", nn.initializers.constant(self.initial_sigma), shape, self.param_dtype)
        return {"sigma": sigma, "threshold": self.threshold, "span_mode": self.mode}
