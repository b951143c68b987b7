"""The score terms of attention. Their formulas are those of the Linen modules in `posattn_jax/nn/terms.py`.

Content         q_t . k_s
RotaryContent   (R_t q_t) . (R_s k_s)
Positional      q_t . E_{s-t}
ContentBias     u . k_s
PositionalBias  v . E_{s-t}
RelativeBias    beta_{s-t}
LinearBias      -m_h |s - t|
LearnedDecay    -a_h |s - t|
"""

import math
from typing import ClassVar

import jax.numpy as jnp
from flax import nnx
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike

from posattn_jax.axes import Key, Query, Shape
from posattn_jax.nn.checks import check_nnx, check_parts
from posattn_jax.nn.parts import Encoding, Part, SinusoidalFactors
from posattn_jax.nn.scores import Scores
from posattn_jax.nn.tokens import Tokens
from posattn_jax.ops.decay import decay, slopes
from posattn_jax.ops.encodings import rotate
from posattn_jax.ops.initial import XAVIER
from posattn_jax.ops.kernels import Outside, check_kernel, over_offsets


class Content(nnx.Module):
    """q_t . k_s.

    Example:
      >>> from posattn_jax.nnx import Content
      >>> Content().needs
      ('query', 'key')
    """

    needs: ClassVar[tuple[Part, ...]] = ("query", "key")

    def __call__(self, query: Query | None, key: Key | None, tokens: Tokens) -> Scores:
        return Scores(key=key)


class RotaryContent(nnx.Module):
    """(R_t q_t) . (R_s k_s), where R rotates them by their positions (RoPE, Su 2021): see `ops.encodings.rotate`.

    It replaces `Content`. Of the other terms, only biases of offsets can be added to it. Class tokens have no position
    and are not rotated.

    Args:
      base: the base of the frequencies.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from posattn_jax.nnx import PositionalSelfAttention, RotaryContent
      >>> layer = PositionalSelfAttention(8, num_heads=2, terms=(RotaryContent(base=100.0),), rngs=nnx.Rngs(0))
      >>> layer(jnp.ones((1, 3, 4, 8))).shape
      (1, 3, 4, 8)
    """

    needs: ClassVar[tuple[Part, ...]] = ("query", "key")

    def __init__(self, *, base: float = 10000.0):
        self.base = base

    def __call__(self, query: Query, key: Key, tokens: Tokens) -> Scores:
        place = tokens.grid_shape, self.base, tokens.step, tokens.num_class_tokens
        return Scores(query=rotate(query, *place), key=rotate(key, *place))


class Positional(nnx.Module):
    """q_t . E_{s-t}, where the encoding gives E.

    Args:
      encoding: a module that returns E [*R, h, d], such as `SirenEncoding`.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from posattn_jax.nnx import Content, LearnedEncoding, Positional, PositionalSelfAttention
      >>> rngs = nnx.Rngs(0)
      >>> terms = (Content(), Positional(LearnedEncoding((3, 4), num_heads=2, head_dim=4, rngs=rngs)))
      >>> layer = PositionalSelfAttention(8, num_heads=2, terms=terms, rngs=rngs)
      >>> outputs, intermediates = layer(jnp.ones((1, 3, 4, 8)), return_intermediates=True)
      >>> intermediates["relative_encoding"].shape
      (5, 7, 2, 4)
    """

    needs: ClassVar[tuple[Part, ...]] = ("query",)

    def __init__(self, encoding: Encoding):
        check_nnx(encoding=encoding)
        self.encoding = encoding
        check_parts(self, "encoding")

    def __call__(self, query: Query | None, key: Key | None, tokens: Tokens) -> Scores:
        factors = self.encoding.factors(tokens) if isinstance(self.encoding, SinusoidalFactors) else None
        return Scores(relative_encoding=self.encoding(tokens), factors=factors)


class ContentBias(nnx.Module):
    """u . k_s with a trained u [h d]. Needs `Content`.

    Args:
      num_heads: h of the layer.
      head_dim: d of the layer.
      bias_init: the initialiser of u.
      param_dtype: the dtype of u.
      rngs: the rngs, of which "params" is used.

    Example:
      >>> from flax import nnx
      >>> from posattn_jax.nnx import ContentBias
      >>> ContentBias(num_heads=2, head_dim=4, rngs=nnx.Rngs(0)).u.shape
      (2, 4)
    """

    needs: ClassVar[tuple[Part, ...]] = ("key",)

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        *,
        bias_init: Initializer = XAVIER,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ):
        self.u = nnx.Param(bias_init(rngs.params(), (num_heads, head_dim), param_dtype))

    def __call__(self, query: Query | None, key: Key | None, tokens: Tokens) -> Scores:
        tokens.check_fits(self, num_heads=self.u.shape[0], head_dim=self.u.shape[1])
        return Scores(content_bias=self.u[...])


class PositionalBias(nnx.Module):
    """v . E_{s-t} with a trained v [h d] and the E of `Positional`, which it needs.

    Args:
      num_heads: h of the layer.
      head_dim: d of the layer.
      bias_init: the initialiser of v.
      param_dtype: the dtype of v.
      rngs: the rngs, of which "params" is used.

    Example:
      >>> from flax import nnx
      >>> from posattn_jax.nnx import PositionalBias
      >>> PositionalBias(num_heads=2, head_dim=4, rngs=nnx.Rngs(0)).v.shape
      (2, 4)
    """

    needs: ClassVar[tuple[Part, ...]] = ()

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        *,
        bias_init: Initializer = XAVIER,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ):
        self.v = nnx.Param(bias_init(rngs.params(), (num_heads, head_dim), param_dtype))

    def __call__(self, query: Query | None, key: Key | None, tokens: Tokens) -> Scores:
        tokens.check_fits(self, num_heads=self.v.shape[0], head_dim=self.v.shape[1])
        return Scores(position_bias=self.v[...])


class RelativeBias(nnx.Module):
    """beta_{s-t}, one trained number per offset and head, not scaled: a fixed convolution (Chang 2021, equation 4).

    Args:
      kernel_shape: K, an odd number per dimension: the offsets with a number of their own.
      num_heads: h of the layer.
      outside: what offsets beyond the kernel get: the number of its edge, "clip", or 0, "drop".
      bias_init: the initialiser of beta [*K h].
      param_dtype: the dtype of beta.
      rngs: the rngs, of which "params" is used.

    Raises:
      ValueError: sizes that are not odd.

    Example:
      >>> from flax import nnx
      >>> from posattn_jax.nnx import RelativeBias
      >>> RelativeBias((3, 3), num_heads=2, rngs=nnx.Rngs(0)).beta.shape
      (3, 3, 2)
    """

    needs: ClassVar[tuple[Part, ...]] = ()

    def __init__(
        self,
        kernel_shape: Shape,
        num_heads: int,
        *,
        outside: Outside = "clip",
        bias_init: Initializer = nnx.initializers.zeros,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ):
        self.kernel_shape, self.outside = check_kernel(kernel_shape, kernel_shape), outside
        self.beta = nnx.Param(bias_init(rngs.params(), (*self.kernel_shape, num_heads), param_dtype))

    def __call__(self, query: Query | None, key: Key | None, tokens: Tokens) -> Scores:
        check_kernel(self.kernel_shape, tokens.grid_shape)
        tokens.check_fits(self, num_heads=self.beta.shape[-1])
        return Scores(relative_bias=over_offsets(self.beta[...], tokens.table_shape, self.outside))


class LinearBias(nnx.Module):
    """`beta_{s-t} = -m_h |s - t|`, not scaled and not trained: ALiBi (Press 2021). See `ops.decay.slopes` for m_h.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from posattn_jax.nnx import Content, LinearBias, PositionalSelfAttention
      >>> layer = PositionalSelfAttention(8, num_heads=2, terms=(Content(), LinearBias()), rngs=nnx.Rngs(0))
      >>> layer(jnp.ones((1, 3, 4, 8))).shape
      (1, 3, 4, 8)
    """

    needs: ClassVar[tuple[Part, ...]] = ()

    def __call__(self, query: Query | None, key: Key | None, tokens: Tokens) -> Scores:
        return Scores(relative_bias=decay(tokens.table_shape, slopes(tokens.num_heads)))


class LearnedDecay(nnx.Module):
    """`beta_{s-t} = -a_h |s - t|`, not scaled, with a_h = exp(log_a_h) trained.

    Args:
      num_heads: h of the layer.
      initial_decay: a_h of every head at the start.
      param_dtype: the dtype of log_a [h].
      rngs: not needed, as nothing is drawn.

    Raises:
      ValueError: an `initial_decay` that is not above 0.

    Example:
      >>> from posattn_jax.nnx import LearnedDecay
      >>> LearnedDecay(num_heads=2).log_a.shape
      (2,)
    """

    needs: ClassVar[tuple[Part, ...]] = ()

    def __init__(
        self,
        num_heads: int,
        *,
        initial_decay: float = 0.1,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs | None = None,
    ):
        if initial_decay <= 0:
            raise ValueError(f"initial_decay={initial_decay}: expected more than 0")
        self.log_a = nnx.Param(jnp.full(num_heads, math.log(initial_decay), param_dtype))

    def __call__(self, query: Query | None, key: Key | None, tokens: Tokens) -> Scores:
        tokens.check_fits(self, num_heads=len(self.log_a[...]))
        return Scores(relative_bias=decay(tokens.table_shape, jnp.exp(self.log_a[...])))
