"""Score terms without parameters: rotary encodings and linear biases, as slots of `PositionalSelfAttention`.

RotaryContent  (R_t q_t) . (R_s k_s)   instead of Content
LinearBias     -m_h |s - t|
"""

import math
from typing import ClassVar

import flax.linen as nn
import jax.numpy as jnp

from posattn_jax.axes import Array, Float, Key, Query
from posattn_jax.nn.parts import Part
from posattn_jax.nn.scores import Scores
from posattn_jax.nn.tokens import Tokens
from posattn_jax.ops import grid
from posattn_jax.ops.rotary import rotate


class RotaryContent(nn.Module):
    """(R_t q_t) . (R_s k_s), queries and keys turned by their places (RoPE, Su 2021): see `ops.rotary.rotate`.

    Instead of `Content`, and alone with biases of offsets: a turned query means nothing to an encoding E. On a
    grid each dimension turns its share of the features. Class tokens, which have no place, are left as they are.

    Attributes:
      base: of the frequencies.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import PositionalSelfAttention, RotaryContent
      >>> layer = PositionalSelfAttention(num_heads=2, terms=(RotaryContent(base=100.0),))
      >>> outputs, variables = layer.init_with_output(jax.random.key(0), jnp.ones((1, 3 * 4, 8)), (3, 4))
      >>> outputs.shape
      (1, 12, 8)
    """

    needs: ClassVar[tuple[Part, ...]] = ("query", "key")

    base: float = 10000.0

    def __call__(self, query: Query, key: Key, tokens: Tokens) -> Scores:
        if tokens.positions is not None:
            raise ValueError("RotaryContent turns by places on a grid: points have none")
        cls = tokens.num_class_tokens

        def turn(x: Array) -> Array:
            return jnp.concatenate([x[:, :cls], rotate(x[:, cls:], tokens.grid_shape, self.base)], 1)

        return Scores(query=turn(query), key=turn(key))


class LinearBias(nn.Module):
    """`beta_{s-t} = -m_h |s - t|`, not scaled and not trained: ALiBi (Press 2021). See `slopes` for m_h.

    On a grid `|s - t|` is the Euclidean distance in positions, as Fuller 2023 (CROMA) has it for images.

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
        offsets = grid.relative_offsets(tokens.table_shape).astype(jnp.result_type(float))
        return Scores(relative_bias=-jnp.linalg.norm(offsets, axis=-1)[..., None] * slopes(tokens.num_heads))


def slopes(num_heads: int) -> Float[Array, "h"]:
    """m_h = 2^(-8 h / H) for h = 1 ... H (Press 2021, section 3).

    Where H is no power of 2, as the paper's code: those of the next smaller power, then of twice as many every other.
    """
    power = 2 ** int(math.log2(num_heads))

    def of(heads: int) -> list[float]:
        return [2.0 ** (-8 * h / heads) for h in range(1, heads + 1)]

    return jnp.asarray((of(power) + of(2 * power)[::2])[:num_heads], jnp.result_type(float))
