"""Fixed features of positions, before anything is learned."""

import math
from typing import Literal

import jax.numpy as jnp

from posattn_jax.axes import Array, Float, Shape
from posattn_jax.ops import grid


def sinusoidal_features(x: Float[Array, "..."], num_features: int) -> Float[Array, "... c"]:
    """sin(x w_j) for even j, cos(x w_j) for odd j, w_j = 10000^(-2 floor(j / 2) / num_features).

    Interleaved: features 0 and 1 are the sine and cosine of the highest frequency (Alfons 2022, Algorithm 3).
    """
    j = jnp.arange(num_features)
    angle = x[..., None] * jnp.exp(-(j - j % 2) * (math.log(10000.0) / num_features))
    return jnp.where(j % 2 == 0, jnp.sin(angle), jnp.cos(angle))


def relative_sinusoids(
    grid_shape: Shape,
    num_features: int,
    combine: Literal["sum", "concat"] = "concat",
    reference_shape: Shape | None = None,
) -> Float[Array, "..."]:
    """Sinusoidal features of every relative offset: [*R, num_features].

    Positions are counted 0 ... 2 S - 2 from the offset -(S - 1), as the paper does. With more than one dimension
    (ours; the paper has one) each dimension has features of its own, summed or concatenated. With
    `reference_shape` the count starts at that grid's first offset, so that an offset keeps its features.
    """
    reference = grid.check_reference(grid_shape, reference_shape)
    num_dims = len(reference)
    if combine not in ("sum", "concat"):
        raise ValueError(f'combine="{combine}": expected "sum" or "concat"')
    if combine == "concat" and num_features % num_dims:
        raise ValueError(f'num_features={num_features}: combine="concat" needs a multiple of {num_dims} dimensions')
    each = num_features // num_dims if combine == "concat" else num_features
    x = grid.relative_offsets(grid_shape) + jnp.asarray(reference) - 1
    features = sinusoidal_features(x.astype(jnp.result_type(float)), each)  # [*R, p, each]
    return features.sum(-2) if combine == "sum" else features.reshape(*features.shape[:-2], num_features)
