"""Score terms that are biases by distance: they decay at a rate that is given or learned, or are T5's, in buckets."""

import math
from typing import ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike

from posattn_jax.axes import Key, Query
from posattn_jax.nn.parts import Part
from posattn_jax.nn.scores import Scores
from posattn_jax.nn.tokens import Tokens
from posattn_jax.ops.biases import check_buckets, decay, over_buckets, slopes
from posattn_jax.ops.precision import float32_or_better
from posattn_jax.system.errors import check

FASTEST = 64.0  # with a log_a of this or more each query sees itself alone; exp of 89 would be infinite


class LinearBias(nn.Module):
    """`beta_{s-t} = -m_h |s - t|`, not scaled and not trained: ALiBi (Press 2021). See `ops.biases.slopes` for m_h.

    On a grid `|s - t|` is the Euclidean distance in positions, as in Fuller 2023 (CROMA) for images.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import Content, LinearBias, PositionalSelfAttention
      >>> layer = PositionalSelfAttention(num_heads=2, terms=(Content(), LinearBias()))
      >>> outputs, variables = layer.init_with_output(jax.random.key(0), jnp.ones((1, 3 * 4, 8)), (3, 4))
      >>> outputs.shape
      (1, 12, 8)
    """

    needs: ClassVar[tuple[Part, ...]] = ()

    def __call__(self, query: Query | None, key: Key | None, tokens: Tokens) -> Scores:
        return Scores(relative_bias=decay(tokens.table_shape, slopes(tokens.num_heads), tokens.query_grid_shape))


class LearnedDecay(nn.Module, kw_only=True):
    """Multiplies weights, before the softmax's sum, by `exp(-a_h |s - t|)`, with a_h = exp(log_a_h) trained.

    It is the bias `beta_{s-t} = -a_h |s - t|`, not scaled. `|s - t|` is the Euclidean distance in positions.
    `LinearBias` is the same with fixed slopes; learned ones are our extension.

    Attributes:
      initial_decay: a_h of every head at the start.
      param_dtype: the dtype of log_a [h].

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import Content, LearnedDecay, PositionalSelfAttention
      >>> layer = PositionalSelfAttention(num_heads=2, terms=(Content(), LearnedDecay()))
      >>> outputs, variables = layer.init_with_output(jax.random.key(0), jnp.ones((1, 3 * 4, 8)), (3, 4))
      >>> jax.tree.map(jnp.shape, variables["params"]["terms_1"])
      {'log_a': (2,)}
    """

    needs: ClassVar[tuple[Part, ...]] = ()

    initial_decay: float = 0.1
    param_dtype: DTypeLike = jnp.float32

    def __post_init__(self):
        check("initial_decay", self.initial_decay, lambda x: 0 < x < math.inf, "a finite number of more than 0")
        super().__post_init__()

    @nn.compact
    def __call__(self, query: Query | None, key: Key | None, tokens: Tokens) -> Scores:
        start = nn.initializers.constant(math.log(self.initial_decay))
        log_a = self.param("log_a", start, (tokens.num_heads,), self.param_dtype)
        rates = jnp.exp(jnp.minimum(log_a.astype(float32_or_better(log_a.dtype)), FASTEST))
        return Scores(relative_bias=decay(tokens.table_shape, rates, tokens.query_grid_shape))


class BucketedBias(nn.Module):
    """beta_{s-t} = table[bucket(s - t)], one trained number per bucket and head, not scaled: T5's (Raffel 2020).

    `ops.biases.buckets` defines the buckets. On a grid the table has the buckets of each dimension (our extension). T5
    shares one such term between all layers, and does not scale its products: `PositionalSelfAttention(scale=1.0)`.

    Attributes:
      num_buckets: N, the buckets per dimension; half of them are for keys after their query.
      max_distance: offsets from here on share the last bucket of their direction.
      bias_init: the initialiser of the table [*N h].
      param_dtype: the dtype of the table.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import BucketedBias, Content, PositionalSelfAttention
      >>> layer = PositionalSelfAttention(num_heads=2, terms=(Content(), BucketedBias(num_buckets=8)), scale=1.0)
      >>> outputs, variables = layer.init_with_output(jax.random.key(0), jnp.ones((1, 5, 8)))
      >>> jax.tree.map(jnp.shape, variables["params"]["terms_1"])
      {'table': (8, 2)}
    """

    needs: ClassVar[tuple[Part, ...]] = ()

    num_buckets: int = 32
    max_distance: int = 128
    bias_init: Initializer = nn.initializers.zeros
    param_dtype: DTypeLike = jnp.float32

    def __post_init__(self):
        check_buckets(self.num_buckets, self.max_distance)
        super().__post_init__()

    @nn.compact
    def __call__(self, query: Query | None, key: Key | None, tokens: Tokens) -> Scores:
        tokens.check_one_grid(self)
        shape = (*(self.num_buckets,) * len(tokens.grid_shape), tokens.num_heads)
        table = self.param("table", self.bias_init, shape, self.param_dtype)
        return Scores(relative_bias=over_buckets(table, tokens.table_shape, self.max_distance))
