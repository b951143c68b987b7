"""Dropout from few random bits: making them costs more than anything else that dropout does."""

import jax
import jax.numpy as jnp

from posattn_jax.axes import Array

LEVELS = 256


def dropped_levels(rate: float) -> int:
    """The share of all random bytes, in 256ths, that are dropped: the nearest to `rate`, but 0 and 1 for them alone."""
    if rate in (0.0, 1.0):
        return int(LEVELS * rate)
    return min(max(round(LEVELS * rate), 1), LEVELS - 1)


def dropout(inputs: Array, rng: Array, rate: float) -> Array:
    """Inverted dropout: with p = `rate` rounded to a 256th, 0 with probability p, and elsewhere inputs / (1 - p).

    Its mean is the inputs. Rates between 0 and 1 are at least 1/256 and at most 255/256.
    """
    levels = dropped_levels(rate)
    share = levels / LEVELS
    if share in (0, 1):
        return inputs * int(1 - share)
    *leading, last = inputs.shape
    words = jax.random.bits(rng, (*leading, -(-last // 4)), jnp.uint32)  # a word serves four neighbours
    every_byte = jax.lax.bitcast_convert_type(words, jnp.uint8).reshape(*leading, -1)[..., :last]
    return jnp.where(every_byte >= levels, inputs / (1 - share), 0)
