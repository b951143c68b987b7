"""From features to those of heads, several of them by one product."""

import jax.numpy as jnp

from posattn_jax.axes import Array, Features, Float


def fused_projection(
    inputs: Features, kernel: Float[Array, "c n h d"], bias: Float[Array, "n h d"] | None = None
) -> Float[Array, "n b t h d"]:
    """x W_i + b_i for each of n projections, [n b t h d]."""
    fused = jnp.einsum("btc,cnhd->nbthd", inputs, kernel)
    return fused if bias is None else fused + bias[:, None, None]
