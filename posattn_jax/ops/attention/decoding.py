"""A step of causal decoding: one query, and the keys and values that its span reaches, kept as a ring."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike

from posattn_jax.axes import (
    Array,
    HeadVector,
    Int,
    Key,
    Query,
    RelativeBias,
    RelativeEncoding,
    Shape,
    SharedKey,
    Sigma,
    Value,
)
from posattn_jax.ops import grid, scores, span
from posattn_jax.ops.span import SpanMode


class Cache(NamedTuple):
    """The keys and values of the last s places, of place t in slot t % s.

    Attributes:
      key, value: [b s k d], k heads of keys and values.
      step: how many places came before, [].

    Example:
      >>> from posattn_jax import Cache
      >>> cache = Cache.empty(batch_size=1, length=5, num_heads=2, head_dim=4)
      >>> cache.key.shape, int(cache.step)
      ((1, 5, 2, 4), 0)
    """

    key: SharedKey
    value: SharedKey
    step: Int[Array, ""]

    @classmethod
    def empty(
        cls, batch_size: int, length: int, num_heads: int, head_dim: int, dtype: DTypeLike = jnp.float32
    ) -> "Cache":
        """Before the first place; for `length` see `cache_length`. `num_heads`: of keys and values."""
        key, value = (jnp.zeros((batch_size, length, num_heads, head_dim), dtype) for _ in range(2))
        return cls(key, value, jnp.zeros((), jnp.int32))

    @property
    def length(self) -> int:
        """s."""
        return self.value.shape[1]

    def of_heads(self, kept: SharedKey, num_heads: int) -> Key:
        """For each head of queries that of its group."""
        return jnp.repeat(kept, num_heads // kept.shape[2], axis=2)

    def put(self, key: Key | None, value: Value) -> "Cache":
        """With the next place [b 1 h d], instead of that of s places ago; of heads that share a key, the first."""
        each = self.value.shape[2]

        def put(kept: Array, new: Array | None) -> Array:
            slot = self.step % self.length
            if new is None:
                return kept
            new = new[:, :, :: new.shape[2] // each].astype(kept.dtype)
            return lax.dynamic_update_slice_in_dim(kept, new, slot, 1)

        return Cache(put(self.key, key), put(self.value, value), self.step + 1)


def cache_length(grid_shape: Shape, half: Shape | None) -> int:
    """The places that a cache needs, in row-major order: the query, and those before it within the half-spans.

    Without a span (None) it is every place of the grid.

    Example:
      >>> from posattn_jax import cache_length
      >>> cache_length((4096,), (25,)), cache_length((64, 64), (3, 2)), cache_length((4096,), None)
      (26, 195, 4096)
    """
    reach = [size - 1 for size in grid_shape] if half is None else np.minimum(half, np.subtract(grid_shape, 1))
    return 1 + int(np.dot(reach, grid.strides(grid_shape)))


def table_shape(grid_shape: Shape, length: int) -> tuple[int, ...]:
    """The grid whose offsets E and beta have: those that a cache of this length can meet."""
    shape = grid.check_grid(grid_shape)
    return (min(length, shape[0]),) if len(shape) == 1 else shape


def decode(
    query: Query,
    key: Key | None,
    value: Value,
    cache: Cache,
    *,
    grid_shape: Shape,
    relative_encoding: RelativeEncoding | None = None,
    content_bias: HeadVector | None = None,
    position_bias: HeadVector | None = None,
    relative_bias: RelativeBias | None = None,
    sigma: Sigma | None = None,
    threshold: float = 0.1,
    span_mode: SpanMode = "multiply",
    reference_shape: Shape | None = None,
    scale: float | None = None,
) -> tuple[Query, Cache]:
    """The outputs of the next place: as `relative_attention` with is_causal=True, the last row of places 0 to t.

    The cost and the memory follow the cache, and so the span: they do not grow with t. In one dimension t may go beyond
    the grid, whose S is then but the unit of sigma.

    Args:
      query, key, value: of place t = cache.step, [b 1 h d]; key None leaves out the content term.
      cache: of the places before; at least `cache_length(grid_shape, half_span)` long.
      relative_encoding, relative_bias: of the offsets of `table_shape(grid_shape, cache.length)`.
      grid_shape, content_bias, position_bias, sigma, threshold, span_mode, reference_shape, scale: see
        `relative_attention`.

    Returns:
      The outputs [b 1 h d], NaN where the span reaches beyond the cache; and the cache with this place in it.

    Raises:
      ValueError: a cache that is longer than the grid, or without a span shorter.
    """
    place, length, needed = cache.step, cache.length, grid.num_positions(grid_shape)
    if length > needed or (sigma is None and length < needed):
        most = "without a span" if sigma is None else "at most"
        raise ValueError(f"a cache of {length} places on grid_shape={grid_shape}: expected {needed} {most}")
    cache = cache.put(key, value)
    ages = (place - jnp.arange(length)) % length  # of the slots
    offsets = grid.coordinates(place - ages, grid_shape) - grid.coordinates(place, grid_shape)  # [s p]
    table = table_shape(grid_shape, length)
    rows = (offsets + jnp.asarray(table) - 1) @ jnp.asarray(grid.strides(grid.relative_shape(table)))

    def of_slots(array: Array) -> Array:
        """[*R ...] -> [s ...]"""
        return array.reshape(-1, *array.shape[len(table) :])[rows]

    query, attended = query[:, 0], [ages <= place]
    logits: Array = jnp.zeros((*query.shape[:2], length), jnp.promote_types(jnp.float32, query.dtype))
    if key is not None:
        content = query if content_bias is None else query + content_bias
        logits += scores.product_sum("bhd,bshd->bhs", content, cache.of_heads(cache.key, query.shape[1]))
    if relative_encoding is not None:
        positional = query if position_bias is None else query + position_bias
        logits += scores.product_sum("bhd,shd->bhs", positional, of_slots(relative_encoding))
    logits *= query.shape[-1] ** -0.5 if scale is None else scale
    if relative_bias is not None:
        logits += of_slots(relative_bias).T
    if sigma is not None:
        sigma = jnp.atleast_2d(sigma)
        half = span.half_span(sigma, threshold, grid_shape, reference_shape)
        log_g = span.log_gaussian(grid.normalise(offsets, grid_shape, reference_shape), sigma)  # [h|1 s]
        logits = scores.modulate(logits, log_g.astype(logits.dtype), span_mode)
        attended.append(span.inside_span(offsets, half))
        reach = jnp.max(half @ jnp.asarray(grid.strides(grid_shape), half.dtype))
        logits += jnp.where(reach < length, 0, jnp.nan)  # not of what is forgotten
    weights = scores.masked_softmax(logits, attended)
    kept = cache.of_heads(cache.value, query.shape[1]).astype(weights.dtype)
    outputs = scores.product_sum("bhs,bshd->bhd", weights, kept)
    return outputs.astype(value.dtype)[:, None], cache
