"""Energies and fixed weights of query-key pairs that depend only on the places of the tokens, not on their contents.

Places are integer coordinates: [b t p] of queries t, [b s p] of keys s, where b is 1 if they are the same for every
example. An offset is s - t, key minus query. In cross-attention t is floor(gamma t), the place of the query among the
keys (Schmidt 2023, equation 10).
"""

import math

import jax.numpy as jnp
import numpy as np

from posattn_jax.axes import Array, Bool, Float, Int, Sizes
from posattn_jax.ops import grid
from posattn_jax.ops.precision import aligned, minus, same_dtype

Places = Int[Array, "_ _ p"]


def kernel_entries(offset: Int[Array, "_ t s p"], half: Sizes) -> tuple[Int[Array, "_ t s"], Bool[Array, "_ t s"]]:
    """For each pair, its entry, clipped, in a kernel of 2 half + 1 offsets per dimension; and whether it is inside."""
    _, limit = aligned(offset, np.array(half))
    clipped = jnp.clip(offset, -limit, limit) + limit
    return row_major(clipped, tuple(2 * h + 1 for h in half)), jnp.all(jnp.abs(offset) <= limit, -1)


def row_major(places: Int[Array, "... p"], shape: Sizes) -> Int[Array, "..."]:
    """The index of a place on a grid, in row-major order."""
    return places @ jnp.asarray(grid.strides(shape), jnp.int32)


def of_offsets(by_entry: Float[Array, "_ h _ r"], entries: Int[Array, "_ t s"]) -> Float[Array, "_ h t s"]:
    """A_ts = by_entry[t, entry_ts]: [b h t r] -> [b h t s]; b or t may be 1 where it is the same for all."""
    if by_entry.shape[0] == by_entry.shape[2] == 1:
        return jnp.swapaxes(by_entry[0, :, 0][:, entries], 0, 1)
    return jnp.take_along_axis(by_entry, entries[:, None], axis=-1)


def gaussian_weights(
    offset: Int[Array, "_ t s p"], centres: Float[Array, "h p"], sigma: float
) -> Float[Array, "_ h t s"]:
    """prod_p (2 pi sigma^2)^(-1/2) exp(-(s - t - centre)^2 / 2 sigma^2), not normalised (equation 12)."""
    squares = jnp.sum(jnp.square(minus(offset[:, None], centres[None, :, None, None])), -1)
    density = (sigma * math.sqrt(2 * math.pi)) ** -centres.shape[-1]
    return density * jnp.exp(-squares / (2 * sigma**2))


def fourier_weights(queries: Places, keys: Places, lengths: Float[Array, "_ _ p"]) -> Float[Array, "_ 1 t s"]:
    """cos(2 pi sum_p t_p s_p / M_p) / sqrt(prod M): the real part of a DFT over M places (equation 11).

    M [b t p] are the `lengths` of every query; b or t may be 1.
    """
    products = queries[:, :, None] * keys[:, None]  # [b t s p]
    # Reduced modulo M before the division, because cosines of large angles lose digits.
    products, lengths = same_dtype(products, lengths)
    turns = jnp.sum((products % lengths[:, :, None]) / lengths[:, :, None], -1)
    return (jnp.cos(2 * math.pi * turns) / jnp.sqrt(jnp.prod(lengths, -1))[:, :, None])[:, None]
