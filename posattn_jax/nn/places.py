"""The positions of a mixer's queries and keys, and which of their pairs may attend."""

import dataclasses
import math
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike

from posattn_jax.axes import Array, Bool, Causal, Features, Float, Int, KeyMask, SegmentIds, Shape
from posattn_jax.nn.axis_names import named
from posattn_jax.nn.checks import check_rates, check_sizes
from posattn_jax.nn.gating import exact_gelu
from posattn_jax.nn.layers import Dropout, linear
from posattn_jax.ops import grid, mixing, scores
from posattn_jax.ops.encodings import sinusoidal_features
from posattn_jax.ops.initial import XAVIER
from posattn_jax.ops.precision import aligned


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
        places = of_sequence(*shape, segment_ids)
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


class SinusoidalPositions(nn.Module):
    """Fixed sinusoids of positions. The c features are divided among the dimensions (Vaswani 2017).

    Example:
      >>> from posattn_jax import SinusoidalPositions, of_grid
      >>> SinusoidalPositions().apply({}, of_grid((2, 3)).query, 8).shape
      (1, 6, 8)
    """

    def __call__(self, places: Int[Array, "*n p"], width: int) -> Float[Array, "*n c"]:
        """[*n c]; ValueError if the number of dimensions does not divide the width."""
        num_dims = places.shape[-1]
        if width % num_dims:
            raise ValueError(f"width={width}: sinusoids of {num_dims} dimensions need a multiple of {num_dims}")
        features = sinusoidal_features(places.astype(jnp.result_type(float)), width // num_dims)
        return features.reshape(*places.shape[:-1], width)


class LearnedPositions(nn.Module):
    """A trained vector for every position of a grid (Gehring 2017). Positions beyond the grid have that of the nearest.

    Attributes:
      grid_shape: the grid that the table covers.
      embedding_init: the initialiser of the table [N c].
      param_dtype: the dtype of the table.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import LearnedPositions, of_grid
      >>> vectors, variables = LearnedPositions((2, 3)).init_with_output(jax.random.key(0), of_grid((4, 3)).query, 8)
      >>> vectors.shape, jax.tree.map(jnp.shape, variables["params"])
      ((1, 12, 8), {'table': (6, 8)})
    """

    grid_shape: tuple[int, ...]
    embedding_init: Initializer = XAVIER
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, places: Int[Array, "*n p"], width: int) -> Float[Array, "*n c"]:
        """[*n c]."""
        shape = grid.check_grid(self.grid_shape)
        init = named(self.embedding_init, None, "width")
        table = self.param("table", init, (grid.num_positions(shape), width), self.param_dtype)
        return table[mixing.row_major(jnp.clip(places, 0, aligned(places, np.subtract(shape, 1))[1]), shape)]


class FourierPositions(nn.Module):
    """Learnable Fourier features of positions, followed by a network (Li 2021, Algorithm 1).

      r_x = [cos(W_r x); sin(W_r x)] / sqrt(f),  vector of x = W_p (gelu(r_x W_1 + b_1) W_2 + b_2)

    W_2 and W_p are linear maps in succession, and are merged into one here. x are coordinates in positions. All
    dimensions form one group, in the paper's terms.

    Attributes:
      num_features: f, the width of r_x, an even number; None: c.
      hidden_features: the hidden width of the network; None: c.
      gamma: W_r is drawn from N(0, 1 / gamma^2), in radians per position.
      param_dtype: the dtype of the parameters.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import FourierPositions
      >>> places = jnp.array([[0, 0], [0, 1], [1, 0]])
      >>> vectors, variables = FourierPositions().init_with_output(jax.random.key(0), places, 8)
      >>> vectors.shape
      (3, 8)
    """

    num_features: int | None = None
    hidden_features: int | None = None
    gamma: float = 1.0
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, places: Int[Array, "*n p"], width: int) -> Float[Array, "*n c"]:
        """[*n c]; ValueError for an odd number of features, or a gamma that is not above 0."""
        f = width if self.num_features is None else self.num_features
        if f < 2 or f % 2:
            raise ValueError(f"num_features={f}: expected an even number of at least 2")
        if self.gamma <= 0:
            raise ValueError(f"gamma={self.gamma}: expected more than 0")
        init = nn.initializers.normal(1 / self.gamma)
        frequencies = self.param("frequencies", init, (places.shape[-1], f // 2), self.param_dtype)
        angles = places.astype(jnp.result_type(float)) @ frequencies
        features = jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], -1) / math.sqrt(f)
        hidden = self.hidden_features or width
        features = linear(hidden, f, param_dtype=self.param_dtype, name="hidden")(features)
        return linear(width, hidden, param_dtype=self.param_dtype, name="output")(exact_gelu(features))


class StackPositions(nn.Module):
    """The positions of a stack of blocks: vectors added to its word embeddings, and features for all of its layers.

      form            words become                features
      "sinusoidal"    word sqrt(c) + sinusoids    drop(sinusoids)
      "learned"       (word + vector) sqrt(c)     drop(LN(vectors))
      "none"          word sqrt(c)                none

    Attributes:
      form: see above.
      max_length: the number of learned vectors; later positions have the last one.
      dropout_rate: the dropout rate of the features. It is drawn per example, once for all layers.
      layer_norm_epsilon: the epsilon of LN.
      param_dtype: the dtype of the vectors and of LN.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import StackPositions
      >>> positions = StackPositions("learned", max_length=4)
      >>> places = jnp.arange(6, dtype=jnp.int32)[None, :, None]
      >>> (added, features), variables = positions.init_with_output(jax.random.key(0), places, 8)
      >>> added.shape, features.shape, bool((added[0, 4] == added[0, 3]).all())
      ((1, 6, 8), (1, 6, 8), True)
    """

    form: Literal["sinusoidal", "learned", "none"] = "sinusoidal"
    max_length: int = 128
    dropout_rate: float = 0.0
    layer_norm_epsilon: float = 1e-6
    param_dtype: DTypeLike = jnp.float32

    def __post_init__(self):
        check_sizes(self, "max_length")
        check_rates(self, "dropout_rate")
        super().__post_init__()

    @nn.compact
    def __call__(
        self, places: Int[Array, "_ s 1"], width: int, batch_size: int = 1, *, deterministic: bool = True
    ) -> tuple[Float[Array, "_ s c"] | None, Float[Array, "_ s c"] | None]:
        """The vectors to add and the features of these positions; with dropout, features for `batch_size` examples."""
        match self.form:
            case "sinusoidal":
                added = features = SinusoidalPositions()(places, width)
            case "learned":
                vectors = LearnedPositions((self.max_length,), param_dtype=self.param_dtype, name="vectors")
                added = vectors(places, width)
                features = nn.LayerNorm(self.layer_norm_epsilon, param_dtype=self.param_dtype, name="norm")(added)
            case "none":
                return None, None
            case _:
                raise ValueError(f'form="{self.form}": expected "sinusoidal", "learned" or "none"')
        if not deterministic and self.dropout_rate:
            features = jnp.broadcast_to(features, (batch_size, *features.shape[1:]))
        return added, Dropout(self.dropout_rate)(features, deterministic=deterministic)

    def add(self, words: Features, added: Float[Array, "_ t c"] | None) -> Features:
        """The scaled word embeddings with the vectors of their positions."""
        root = jnp.sqrt(words.shape[-1]).astype(words.dtype)
        if added is None:
            return words * root
        added = added.astype(words.dtype)
        return (words + added) * root if self.form == "learned" else words * root + added


def places_within(segment_ids: SegmentIds) -> Int[Array, "b t"]:
    """The place of every token in its segment, from 0."""
    places = jnp.arange(segment_ids.shape[1], dtype=jnp.int32)
    begins = jnp.diff(segment_ids, axis=1, prepend=segment_ids[:, :1] - 1) != 0
    return places[None] - jax.lax.cummax(jnp.where(begins, places[None], 0), axis=1)
