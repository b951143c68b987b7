"""A score term that is a network of the products of queries and keys and of their offsets (Zhao 2020)."""

from typing import Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike

from posattn_jax.axes import Key, Query
from posattn_jax.nn.layers import linear
from posattn_jax.nn.parts import Part
from posattn_jax.nn.scores import Scores
from posattn_jax.nn.tokens import Tokens
from posattn_jax.ops import grid
from posattn_jax.ops.precision import plus
from posattn_jax.ops.scores import product_sum


class ScoreNetwork(nn.Module):
    """A_ts = gamma([q_t . k_s; W (x_s - x_t)]), instead of `Content`, where x are normalised positions.

      gamma(y) = W_2 relu(W_1 y + b_1) + b_2,  where y are the products of all h heads and p features of the offset

    Alfons 2022 describes it in Table 1, in the row of Zhao 2020, and in section 3.1: positions are normalised to
    [-1, 1] and go through a linear layer; their differences are concatenated with the content scores; a network maps
    these to weights. There the weights are local, and there are weights per feature instead of per head. For pairs with
    a class token the features of the offset are 0.

    Attributes:
      hidden_features: the hidden width of gamma; None: h.
      param_dtype: the dtype of the parameters; the computation is in float32 or better.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import PositionalSelfAttention, ScoreNetwork
      >>> layer = PositionalSelfAttention(num_heads=2, terms=(ScoreNetwork(),))
      >>> outputs, variables = layer.init_with_output(jax.random.key(0), jnp.ones((1, 3 * 4, 8)), (3, 4))
      >>> outputs.shape
      (1, 12, 8)
    """

    needs: ClassVar[tuple[Part, ...]] = ("query", "key")

    hidden_features: int | None = None
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, query: Query, key: Key, tokens: Tokens) -> Scores:
        tokens.check_whole(self)
        shape, cls, heads = tokens.grid_shape, tokens.num_class_tokens, tokens.num_heads
        dtypes: dict[str, Any] = {"param_dtype": self.param_dtype}
        hidden = self.hidden_features or heads
        places = linear(len(shape), len(shape), use_bias=False, name="places", **dtypes)
        offsets = places(grid.relative_coordinates(shape, tokens.reference_shape))
        offsets = jnp.pad(grid.toeplitz(offsets, shape), [(cls, 0), (cls, 0), (0, 0)])
        products = product_sum("bthd,bshd->btsh", query, key)
        # W_1 y + b_1 in two parts: the part of the offsets is the same for every example.
        fan_in = heads + len(shape)
        x = linear(hidden, fan_in, use_bias=False, name="of_products", **dtypes)(products)
        x = plus(x, linear(hidden, fan_in, name="of_offsets", **dtypes)(offsets))
        scores = linear(heads, hidden, name="output", **dtypes)(nn.relu(x))
        return Scores(pair_scores=jnp.moveaxis(scores, -1, 1))
