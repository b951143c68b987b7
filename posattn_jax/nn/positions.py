"""Positions as features: fixed, learned, or of a network; and those of a whole stack of blocks."""

import math
from typing import Literal

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike

from posattn_jax.axes import Array, Features, Float, Int
from posattn_jax.nn.checks import check_rates, check_sizes
from posattn_jax.nn.gating import exact_gelu
from posattn_jax.nn.layers import Dropout, linear
from posattn_jax.nn.sharding import named
from posattn_jax.ops import grid, mixing
from posattn_jax.ops.encodings import sinusoidal_features
from posattn_jax.ops.initial import XAVIER
from posattn_jax.ops.precision import aligned


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
