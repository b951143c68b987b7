"""The score terms of attention, each a slot of `PositionalSelfAttention`.

A term adds what it stands for to the arguments of `relative_attention`, and says what it `needs` of the projections:

  Content          q_t . k_s
  Positional       q_t . E_{s-t}
  ContentBias      u . k_s
  PositionalBias   v . E_{s-t}

Their sum is formula 1 of Alfons 2022 (after Transformer-XL).
"""

from typing import Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike

from posattn_jax.axes import Array, Key, Query
from posattn_jax.nn.encodings import Encoding
from posattn_jax.nn.projections import Part
from posattn_jax.nn.tokens import Tokens


class Content(nn.Module):
    """q_t . k_s."""

    needs: ClassVar[tuple[Part, ...]] = ("query", "key")

    def __call__(self, query: Query | None, key: Key | None, tokens: Tokens) -> dict[str, Key | None]:
        return {"key": key}


class Positional(nn.Module):
    """q_t . E_{s-t}, E given by the encoding; with it what E is made of, "factors", where the encoding tells.

    Attributes:
      encoding: a module that returns E [*R, h, d], such as `SirenEncoding()`.
    """

    needs: ClassVar[tuple[Part, ...]] = ("query",)

    encoding: Encoding

    def __call__(self, query: Query | None, key: Key | None, tokens: Tokens) -> dict[str, Any]:
        heads = tokens.num_heads, tokens.head_dim
        made = {"relative_encoding": self.encoding(*heads, tokens.grid_shape, tokens.reference_shape, tokens.reach)}
        factors = getattr(self.encoding, "factors", None)
        return made if factors is None else made | {"factors": factors(*heads)}


class ContentBias(nn.Module):
    """u . k_s with a trained u [h d]. Needs `Content`.

    Attributes:
      bias_init: of u; the paper's Xavier-uniform over (h, d).
      param_dtype: of u.
    """

    needs: ClassVar[tuple[Part, ...]] = ("key",)

    bias_init: Initializer = nn.initializers.xavier_uniform()
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, query: Query | None, key: Key | None, tokens: Tokens) -> dict[str, Array]:
        return {"content_bias": self.param("u", self.bias_init, (tokens.num_heads, tokens.head_dim), self.param_dtype)}


class PositionalBias(nn.Module):
    """v . E_{s-t} with a trained v [h d] and the E of `Positional`, which it needs.

    Attributes:
      bias_init: of v; the paper's Xavier-uniform over (h, d).
      param_dtype: of v.
    """

    needs: ClassVar[tuple[Part, ...]] = ()

    bias_init: Initializer = nn.initializers.xavier_uniform()
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, query: Query | None, key: Key | None, tokens: Tokens) -> dict[str, Array]:
        return {"position_bias": self.param("v", self.bias_init, (tokens.num_heads, tokens.head_dim), self.param_dtype)}
