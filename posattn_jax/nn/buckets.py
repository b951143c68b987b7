"""T5's relative bias as a score term."""

from typing import ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike

from posattn_jax.axes import Key, Query
from posattn_jax.nn.parts import Part
from posattn_jax.nn.scores import Scores
from posattn_jax.nn.tokens import Tokens
from posattn_jax.ops.buckets import over_buckets


class BucketedBias(nn.Module):
    """beta_{s-t} = table[bucket(s - t)], one trained number per bucket and head, not scaled: T5's (Raffel 2020).

    `ops.buckets.buckets` defines the buckets. On a grid the table has the buckets of each dimension (our extension). T5
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

    @nn.compact
    def __call__(self, query: Query | None, key: Key | None, tokens: Tokens) -> Scores:
        tokens.check_one_grid(self)
        shape = (*(self.num_buckets,) * len(tokens.grid_shape), tokens.num_heads)
        table = self.param("table", self.bias_init, shape, self.param_dtype)
        return Scores(relative_bias=over_buckets(table, tokens.table_shape, self.max_distance))
