"""Dropout with few random bits, because generating them is the largest cost of dropout."""

import jax
import jax.numpy as jnp

from posattn_jax.axes import Array

LEVELS = 256


def dropped_levels(rate: float) -> int:
    """How many of the 256 byte values are dropped: the nearest to `rate`; none or all only for a rate of 0 or 1."""
    if rate in (0.0, 1.0):
        return int(LEVELS * rate)
    return min(max(round(LEVELS * rate), 1), LEVELS - 1)


def dropout(inputs: Array, rng: Array, rate: float) -> Array:
    """Inverted dropout: 0 with probability p, and otherwise inputs / (1 - p), where p is `rate` rounded to a 256th.

    The expected outputs are the inputs. A rate between 0 and 1 is rounded to at least 1/256 and at most 255/256.
    """
    levels = dropped_levels(rate)
    share = levels / LEVELS
    if share in (0, 1):
        return inputs * int(1 - share)
    *leading, last = inputs.shape
    words = jax.random.bits(rng, (*leading, -(-last // 4)), jnp.uint32)  # one word has the bytes of four neighbours
    every_byte = jax.lax.bitcast_convert_type(words, jnp.uint8).reshape(*leading, 4 * words.shape[-1])[..., :last]
    return jnp.where(every_byte >= levels, inputs / (1 - share), 0)
