"""Score terms that decay with distance, at a rate that is given or learned."""

import math
from typing import ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike

from posattn_jax.axes import Array, Float, Key, Query
from posattn_jax.nn.parts import Part
from posattn_jax.nn.scores import Scores
from posattn_jax.nn.tokens import Tokens
from posattn_jax.ops import grid


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
        m = slopes(tokens.num_heads)
        return Scores(relative_bias=-_distance(tokens, m.dtype) * m)


def slopes(num_heads: int) -> Float[Array, "h"]:
    """m_h = 2^(-8 h / H) for h = 1 ... H (Press 2021, section 3).

    Where H is no power of 2, as the paper's code: those of the next smaller power, then of twice as many every other.
    """
    power = 2 ** int(math.log2(num_heads))

    def of(heads: int) -> list[float]:
        return [2.0 ** (-8 * h / heads) for h in range(1, heads + 1)]

    return jnp.asarray((of(power) + of(2 * power)[::2])[:num_heads], jnp.result_type(float))


def _distance(tokens: Tokens, dtype: DTypeLike) -> Float[Array, "*r 1"]:
    """`|s - t|` at every offset."""
    return jnp.linalg.norm(grid.relative_offsets(tokens.table_shape).astype(dtype), axis=-1)[..., None]


class LearnedDecay(nn.Module):
    """Weights times `exp(-a_h |s - t|)`: `beta_{s-t} = -a_h |s - t|`, not scaled, with a_h = exp(log_a_h) trained.

    `|s - t|` is the Euclidean distance in positions. As `LinearBias`, whose slopes are given; ours.

    Attributes:
      initial_decay: a_h of every head at the start.
      param_dtype: of log_a [h].

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
        if self.initial_decay <= 0:
            raise ValueError(f"initial_decay={self.initial_decay}: expected more than 0")
        super().__post_init__()

    @nn.compact
    def __call__(self, query: Query | None, key: Key | None, tokens: Tokens) -> Scores:
        start = nn.initializers.constant(math.log(self.initial_decay))
        log_a = self.param("log_a", start, (tokens.num_heads,), self.param_dtype)
        return Scores(relative_bias=-jnp.exp(log_a) * _distance(tokens, log_a.dtype))
