"""The positions of a mixer's queries and keys, and which of their pairs may attend; and the inputs of the keys.

There are two vocabularies. A layer of attention has `Tokens`, terms and `Scores`: its tokens are a grid, everything
depends on offsets s - t, and its operation never lays out all pairs. A mixer has `Places`, `Memory` and energies: its
queries and keys are any two sequences, with coordinates of their own and a ratio of lengths, and its energies [b h t s]
are laid out, may be shared by all examples, and need no softmax. A `Places` cannot say what a loop over windows must
know of a grid, nor `Tokens` what lies on none. They share the checks and masks of `ops.grid` and `ops.scores`.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from posattn_jax.axes import Array, Bool, Causal, Features, Float, Int, KeyMask, SegmentIds, Shape
from posattn_jax.ops import grid, scores


@dataclasses.dataclass(frozen=True)
class Places:
    """The positions of t queries and s keys, as integer coordinates in p dimensions.

    Attributes:
      query: [b t p], with batch 1 if they are the same for every example.
      key: [b s p], likewise.
      key_mask: [b s], True = keep.
      query_segments, key_segments: [b t] and [b s], if several sequences share a row: queries attend to keys of their
        own segment only.
      is_causal: whether query t attends only to keys that are not after it in row-major order; or one bool per
        dimension: in any causal dimension.
      length_ratio: gamma; query t has the coordinate floor(gamma t) among the keys.
      query_features, key_features: the model's features of these positions, [b t c] and [b s c], with batch 1 if they
        are the same for every example. None: a layer that needs features computes its own.
      query_shape, key_shape: the grids of these positions, known before running. Tables refuse larger ones.
      step: the number of the single query of a decoding step; later keys do not exist yet. None: no decoding.

    Example:
      >>> import jax.numpy as jnp
      >>> from posattn_jax import Places
      >>> query, key = jnp.array([[[0], [1]]]), jnp.array([[[0], [1], [2], [3]]])
      >>> print(Places(query, key, length_ratio=2.0).offsets[0, ..., 0])
      [[ 0  1  2  3]
       [-2 -1  0  1]]
    """

    query: Int[Array, "_ t p"]
    key: Int[Array, "_ s p"]
    key_mask: KeyMask | None = None
    query_segments: SegmentIds | None = None
    key_segments: Int[Array, "b s"] | None = None
    is_causal: Causal = False
    length_ratio: float = 1.0
    query_features: Float[Array, "_ t c"] | None = None
    key_features: Float[Array, "_ s c"] | None = None
    query_shape: tuple[int, ...] = ()
    key_shape: tuple[int, ...] = ()
    step: Any = None

    def __post_init__(self):
        scores.check_bool("key_mask", self.key_mask)
        object.__setattr__(self, "is_causal", grid.check_causal(self.is_causal, self.query.shape[-1]))
        if (self.query_segments is None) != (self.key_segments is None):
            raise ValueError("query_segments, key_segments: expected both or none")

    @property
    def anchor(self) -> Int[Array, "_ t p"]:
        """The coordinates of the queries among the keys: floor(gamma t)."""
        if self.length_ratio == 1:
            return self.query
        return jnp.floor(self.query.astype(jnp.result_type(float)) * self.length_ratio).astype(jnp.int32)

    @property
    def offsets(self) -> Int[Array, "_ t s p"]:
        """Key minus query."""
        return self.key[:, None] - self.anchor[:, :, None]

    def masks(self) -> list[Bool[Array, "..."]]:
        """Masks of the keys that are attended, each broadcastable to [b h t s]."""
        masks: list[Any] = [] if self.key_mask is None else [self.key_mask[:, None, None, :]]
        if self.is_causal:
            masks.append(grid.not_after(self.key[:, None] - self.query[:, :, None], self.is_causal)[:, None])
        if self.query_segments is not None and self.key_segments is not None:
            masks.append((self.query_segments[:, :, None] == self.key_segments[:, None])[:, None])
        return masks


def of_sequence(length: int, segment_ids: SegmentIds | None = None) -> Int[Array, "_ t 1"]:
    """The positions 0, 1, ... of a sequence. If several share a row, the positions of each start at 0."""
    if segment_ids is None:
        return jnp.arange(length, dtype=jnp.int32)[None, :, None]
    return places_within(segment_ids)[..., None]


def of_grid(grid_shape: Shape, segment_ids: SegmentIds | None = None, **fields: Any) -> Places:
    """`Places` in which every position of a grid attends to every other. `fields` are fields of `Places`.

    With `segment_ids` the grid is a row that several sequences share. The positions of each sequence start at 0,
    and a sequence attends to itself only.

    Raises:
      ValueError: segments on a grid of several dimensions.

    Example:
      >>> from posattn_jax import of_grid
      >>> print(of_grid((2, 2)).query[0])
      [[0 0]
       [0 1]
       [1 0]
       [1 1]]
    """
    shape = grid.check_grid(grid_shape)
    if segment_ids is None:
        places = jnp.asarray(grid.positions(shape), jnp.int32)[None]
    elif len(shape) > 1:
        raise ValueError(f"segment_ids: expected a grid of one dimension, not {shape}")
    else:
        places = of_sequence(grid.num_positions(shape), segment_ids)
        fields |= {"query_segments": segment_ids, "key_segments": segment_ids}
    return Places(places, places, query_shape=shape, key_shape=shape, **fields)


def between(num_queries: int, num_keys: int, **fields: Any) -> Places:
    """`Places` of queries 0, 1, ... of one sequence and keys 0, 1, ... of another, or of the same.

    Example:
      >>> from posattn_jax import between
      >>> print(between(2, 4).offsets[0, ..., 0])
      [[ 0  1  2  3]
       [-1  0  1  2]]
    """
    query, key = of_sequence(num_queries), of_sequence(num_keys)
    return Places(query, key, query_shape=(num_queries,), key_shape=(num_keys,), **fields)


def places_within(segment_ids: SegmentIds) -> Int[Array, "b t"]:
    """The place of every token in its segment, from 0."""
    places = jnp.arange(segment_ids.shape[1], dtype=jnp.int32)
    begins = jnp.diff(segment_ids, axis=1, prepend=segment_ids[:, :1] - 1) != 0
    return places[None] - jax.lax.cummax(jnp.where(begins, places[None], 0), axis=1)


@dataclasses.dataclass(frozen=True)
class Memory:
    """New inputs of keys, and the arrays that a mixer kept of earlier inputs, such as keys and values.

      Memory(x)                     every key at once
      Memory(x, before, step)       one more key, number `step`, written into arrays that have room for it
      Memory(before=before)         no new keys: cross-attention after its first step

    Attributes:
      inputs: x [b s c].
      before: the arrays kept earlier, [b s ...] by name.
      step: the index in `before` that the new key is written to.
      kept: the arrays to keep from now on; calling the mixer fills it.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import Memory, TokenMixing, between
      >>> layer, queries, whole = TokenMixing(num_heads=2), jnp.ones((1, 3, 8)), Memory(jnp.ones((1, 5, 8)))
      >>> _, variables = layer.init_with_output(jax.random.key(0), queries, whole, between(3, 5), method="mix")
      >>> again = Memory(before=whole.kept)  # cross-attention after its first step: keys and values are there
      >>> outputs, weights = layer.apply(variables, queries, again, between(3, 5), method="mix")
      >>> sorted(whole.kept), outputs.shape
      (['key', 'value'], (1, 3, 8))
    """

    inputs: Features | None = None
    before: Mapping[str, Array] = dataclasses.field(default_factory=dict)
    step: Int[Array, ""] | None = None
    kept: dict[str, Array] = dataclasses.field(default_factory=dict)

    def keep(self, name: str, make: Callable[[Features], Array]) -> Array:
        """make(inputs), written into the array that was kept under this name before. The result is kept."""
        if self.inputs is None:
            kept = self.before[name]
        elif self.step is None:
            kept = make(self.inputs)
        else:
            new = make(self.inputs).astype(self.before[name].dtype)
            kept = jax.lax.dynamic_update_slice_in_dim(self.before[name], new, self.step, axis=1)
        self.kept[name] = kept
        return kept

    @property
    def batch_size(self) -> int:
        """b."""
        given = next(iter(self.before.values())) if self.inputs is None else self.inputs
        return given.shape[0]
