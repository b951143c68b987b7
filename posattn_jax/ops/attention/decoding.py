"""One step of causal decoding: one query, and a ring buffer of the keys and values that its span reaches."""

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
from posattn_jax.ops.precision import as_array, float32_or_better, minus, plus
from posattn_jax.ops.span import SpanMode


class Cache(NamedTuple):
    """The keys and values of the last s places; place t is in slot t % s.

    Attributes:
      key, value: [b s k d], k heads of keys and values.
      step: the number of places so far, [].

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
        """A cache before the first place. `length`: see `cache_length`; `num_heads`: the heads of keys and values."""
        if length < 1:
            raise ValueError(f"length={length}: expected at least 1")
        key, value = (jnp.zeros((batch_size, length, num_heads, head_dim), dtype) for _ in range(2))
        return cls(key, value, jnp.zeros((), jnp.int32))

    @property
    def length(self) -> int:
        """s, the number of slots."""
        return self.value.shape[1]

    def of_heads(self, kept: SharedKey, num_heads: int) -> Key:
        """Repeats the heads of cached keys or values, one for each head of queries."""
        return jnp.repeat(kept, num_heads // kept.shape[2], axis=2)

    def put(self, key: Key | None, value: Value) -> "Cache":
        """The cache after the next place [b 1 h d], which replaces the one of s places ago.

        Of each group of heads that share a key, the first is stored.
        """
        each = self.value.shape[2]

        def put(kept: Array, new: Array | None) -> Array:
            slot = self.step % self.length
            if new is None:
                return kept
            new = new[:, :, :: new.shape[2] // each].astype(kept.dtype)
            return lax.dynamic_update_slice_in_dim(kept, new, slot, 1)

        return Cache(put(self.key, key), put(self.value, value), self.step + 1)


def cache_length(grid_shape: Shape, half: Shape | None) -> int:
    """The number of places in a cache: in row-major order, from the furthest within the half-spans to the query.

    Without a span (None) it is the number of places of the grid.

    Example:
      >>> from posattn_jax import cache_length
      >>> cache_length((4096,), (25,)), cache_length((64, 64), (3, 2)), cache_length((4096,), None)
      (26, 195, 4096)
    """
    reach = [size - 1 for size in grid_shape] if half is None else np.minimum(half, np.subtract(grid_shape, 1))
    return 1 + int(np.dot(reach, grid.strides(grid_shape)))


def table_shape(grid_shape: Shape, length: int) -> tuple[int, ...]:
    """The grid whose offsets E and beta hold: those that can occur with a cache of this length."""
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
    """The outputs of the next place t: the last row of `relative_attention` with is_causal=True on places 0 to t.

    Cost and memory depend on the length of the cache, and so on the span; they do not grow with t. t may lie beyond the
    grid, along its first dimension: S is then only the unit of sigma, and the limit of offsets.

    Args:
      query, key, value: those of place t = cache.step, [b 1 h d]; key None leaves out the content term.
      cache: the places before, with a length of at least `cache_length(grid_shape, half_span)`.
      relative_encoding, relative_bias: at the offsets of the grid `table_shape(grid_shape, cache.length)`.
      grid_shape, content_bias, position_bias, sigma, threshold, span_mode, reference_shape, scale: see
        `relative_attention`.

    Returns:
      The outputs [b 1 h d], NaN if the span reaches beyond the cache; and the cache with this place added.

    Raises:
      ValueError: the cache is longer than the grid, or without a span shorter than the grid, or its arrays do not fit.
    """
    place, length, needed = cache.step, cache.length, grid.num_positions(grid_shape)
    if length > needed or (sigma is None and length < needed):
        most = "exactly" if sigma is None else "at most"
        raise ValueError(f"cache of {length} positions: expected {most} {needed} for grid_shape={grid_shape}")
    (b, _, h, d), heads = value.shape, cache.value.shape[2]
    if cache.value.shape != (b, length, heads, d) or not heads or h % heads:
        raise ValueError(f"cache of shape {cache.value.shape}: expected [{b} s k {d}], where k divides {h} heads")
    cache = cache.put(key, value)
    ages = (place - jnp.arange(length, dtype=place.dtype)) % length  # of the slots
    offsets = minus(grid.coordinates(place - ages, grid_shape), grid.coordinates(place, grid_shape))  # [s p]
    table = table_shape(grid_shape, length)
    last, strides = np.subtract(table, 1), grid.strides(grid.relative_shape(table))
    last = jnp.asarray(last, offsets.dtype)
    rows = plus(offsets, last) @ jnp.asarray(strides, offsets.dtype)

    def of_slots(array: Array) -> Array:
        """[*R ...] -> [s ...]"""
        return array.reshape(-1, *array.shape[len(table) :])[rows]

    query, attended = query[:, 0], [ages <= place, span.inside_span(offsets, last)]
    logits: Array = jnp.zeros((*query.shape[:2], length), float32_or_better(query.dtype))
    if key is not None:
        content = query if content_bias is None else plus(query, content_bias)
        logits += scores.product_sum("bhd,bshd->bhs", content, cache.of_heads(cache.key, query.shape[1]))
    if relative_encoding is not None:
        positional = query if position_bias is None else plus(query, position_bias)
        logits += scores.product_sum("bhd,shd->bhs", positional, of_slots(relative_encoding))
    logits *= query.shape[-1] ** -0.5 if scale is None else scale
    if relative_bias is not None:
        bias = of_slots(relative_bias).T
        shown = ~scores.hides(bias)
        logits = plus(logits, jnp.where(shown, bias, 0))
        attended.append(shown)
    if sigma is not None:
        sigma = jnp.atleast_2d(as_array(sigma, floating=True))
        half = span.half_span(sigma, threshold, grid_shape, reference_shape)
        coordinates = grid.normalise(offsets, grid_shape, reference_shape)
        log_g = span.log_modulation(coordinates, sigma, span_mode)  # [h|1 s]
        logits = scores.modulate(logits, log_g.astype(logits.dtype), span_mode)
        attended.append(span.inside_span(offsets, half))
        reach = jnp.max(half @ jnp.asarray(grid.strides(grid_shape), half.dtype))
        logits += jnp.where(reach < length, 0, jnp.nan)  # the cache no longer has those keys
    weights = scores.masked_softmax(logits, attended)
    kept = cache.of_heads(cache.value, query.shape[1]).astype(weights.dtype)
    outputs = scores.product_sum("bhs,bshd->bhd", weights, kept)
    return outputs.astype(value.dtype)[:, None], cache
