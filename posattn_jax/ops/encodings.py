"""Fixed features of positions, before anything is learned."""

import math
from typing import Literal

import jax.numpy as jnp

from posattn_jax.axes import Array, Float, Shape
from posattn_jax.ops import grid

Combine = Literal["sum", "concat"]


def frequencies(num_features: int, base: float = 10000.0) -> Float[Array, "f"]:
    """w_j of the pairs of features (sin x w, cos x w): base^(-j / num_features) for even j."""
    return jnp.exp(-jnp.arange(0, num_features, 2) * (math.log(base) / num_features))


def sinusoidal_features(x: Float[Array, "..."], num_features: int) -> Float[Array, "... c"]:
    """sin(x w_j) for even j, cos(x w_j) for odd j, w_j = 10000^(-2 floor(j / 2) / num_features).

    Interleaved: features 0 and 1 are the sine and cosine of the highest frequency (Alfons 2022, Algorithm 3).
    """
    angle = x[..., None] * frequencies(num_features)
    return jnp.stack([jnp.sin(angle), jnp.cos(angle)], axis=-1).reshape(*x.shape, -1)[..., :num_features]


def features_per_dimension(num_features: int, num_dims: int, combine: Combine) -> int:
    """How many of the features each dimension has: all where they are summed, else its share.

    Raises:
      ValueError: another `combine`, or features that the dimensions cannot share.
    """
    if combine not in ("sum", "concat"):
        raise ValueError(f'combine="{combine}": expected "sum" or "concat"')
    if combine == "concat" and num_features % num_dims:
        raise ValueError(f'num_features={num_features}: combine="concat" needs a multiple of {num_dims} dimensions')
    return num_features // num_dims if combine == "concat" else num_features


def relative_sinusoids(
    grid_shape: Shape,
    num_features: int,
    combine: Combine = "concat",
    reference_shape: Shape | None = None,
) -> Float[Array, "..."]:
    """Sinusoidal features of every relative offset: [*R, num_features].

    Positions are counted 0 ... 2 S - 2 from the offset -(S - 1), as the paper does. With more than one dimension
    (ours; the paper has one) each dimension has features of its own, summed or concatenated. With
    `reference_shape` the count starts at that grid's first offset, so that an offset keeps its features.
    """
    reference = grid.check_reference(grid_shape, reference_shape)
    each = features_per_dimension(num_features, len(reference), combine)
    x = grid.relative_offsets(grid_shape) + jnp.asarray(reference) - 1
    features = sinusoidal_features(x.astype(jnp.result_type(float)), each)  # [*R, p, each]
    return features.sum(-2) if combine == "sum" else features.reshape(*features.shape[:-2], num_features)
