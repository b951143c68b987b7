"""Batch rows that hold several sequences. Each sequence is a segment: a run of tokens with the same id."""

import jax
import jax.numpy as jnp

from posattn_jax.axes import Array, Int, SegmentIds


def places_within(segment_ids: SegmentIds) -> Int[Array, "b t"]:
    """The place of every token in its segment, from 0."""
    places = jnp.arange(segment_ids.shape[1], dtype=jnp.int32)
    begins = jnp.diff(segment_ids, axis=1, prepend=segment_ids[:, :1] - 1) != 0
    return places[None] - jax.lax.cummax(jnp.where(begins, places[None], 0), axis=1)
