"""A decoder-only language model: it predicts the next token at every position of a sequence, or step by step."""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike

from posattn_jax.axes import Array, Float, Int, Shape
from posattn_jax.models.stack import run_blocks
from posattn_jax.nn.blocks import EncoderBlock
from posattn_jax.nn.checks import check_rates, check_sizes
from posattn_jax.nn.composite import Composite
from posattn_jax.nn.layers import Dropout
from posattn_jax.nn.sharding import named
from posattn_jax.ops.attention import Cache
from posattn_jax.ops.initial import XAVIER
from posattn_jax.ops.precision import float32_or_better, plus

TokenIds = Int[Array, "b t"]
Kept = tuple[Cache, ...]  # one per block


class LanguageModel(Composite):
    """For each token the logits of the next one, given this token and those before it.

      x = drop(sqrt(c) E[tokens] + positions);  blocks(x), causal;  logits = LN(x) E^T + b

    As in Vaswani 2017, section 3.4, the embeddings are scaled, and the output shares them. Blocks with norm="pre" do
    not normalise their outputs: only the last layer norm does.

    Attributes:
      vocabulary_size: v, the number of token ids.
      width: c.
      blocks: encoder blocks, which attend causally here.
      positions: a module (places [n 1], c) -> [n c], of vectors added to the embeddings; None: no vectors.
      dropout_rate: the dropout rate of the embeddings.
      embedding_init: the initialiser of E [v c].
      remat, scan_layers: see `run_blocks`.
      layer_norm_epsilon: the epsilon of the last layer norm.
      dtype: the dtype of the computation; None: float32. Logits are float32 or better.
      param_dtype: the dtype of the parameters.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import EncoderBlock, LanguageModel, PositionalSelfAttention
      >>> block = EncoderBlock(PositionalSelfAttention(num_heads=2), mlp_dim=8, norm="pre")
      >>> model = LanguageModel(vocabulary_size=10, width=8, blocks=(block,))
      >>> logits, variables = model.init_with_output(jax.random.key(0), jnp.array([[2, 5, 3]]))
      >>> logits.shape
      (1, 3, 10)
    """

    vocabulary_size: int
    width: int
    blocks: tuple[EncoderBlock, ...]
    positions: nn.Module | None = None
    dropout_rate: float = 0.0
    embedding_init: Initializer = XAVIER
    remat: bool = False
    scan_layers: bool = False
    layer_norm_epsilon: float = 1e-5
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32

    def __post_init__(self):
        check_sizes(self, "vocabulary_size", "width")
        check_rates(self, "dropout_rate")
        super().__post_init__()

    def setup(self):
        fields: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        init = named(self.embedding_init, "vocabulary", "width")
        self.embedding = nn.Embed(self.vocabulary_size, self.width, embedding_init=init, **fields)
        self.norm = nn.LayerNorm(self.layer_norm_epsilon, **fields)
        self.bias = self.param("bias", nn.initializers.zeros, (self.vocabulary_size,), self.param_dtype)
        self.dropout = Dropout(self.dropout_rate)

    def __call__(
        self,
        tokens: TokenIds,
        *,
        span_bounds: Sequence[Shape] | None = None,
        deterministic: bool = True,
        return_intermediates: bool = False,
        return_weights: bool = False,
    ) -> Float[Array, "b t v"] | tuple[Float[Array, "b t v"], dict[str, Any]]:
        """The logits of the token after each of `tokens`; the arguments and the intermediates are those of `Bert`."""
        length = tokens.shape[1]
        x = self._embed(tokens, jnp.arange(length)[:, None])
        x, intermediates = run_blocks(
            self,
            self.dropout(x, deterministic=deterministic),
            (length,),
            span_bounds=span_bounds,
            is_causal=True,
            deterministic=deterministic,
            return_weights=return_weights,
        )
        logits = self._logits(x)
        return (logits, intermediates) if return_intermediates or return_weights else logits

    def start(self, batch_size: int, lengths: Sequence[int]) -> Kept:
        """Empty caches, one per block, with room for these numbers of positions; see `cache_length`."""
        caches = []
        for block, length in zip(self.blocks, lengths, strict=True):
            attention = block.attention
            dim, heads = attention.head_dim or self.width // attention.num_heads, attention.num_kv_heads
            dtype = self.dtype or jnp.float32
            caches.append(Cache.empty(batch_size, length, heads or attention.num_heads, dim, dtype))
        return tuple(caches)

    def step(self, tokens: Int[Array, " b"], caches: Kept, length: int) -> tuple[Float[Array, "b v"], Kept]:
        """The logits of the next token after one more token of each sequence, and the updated caches.

        Args:
          tokens: the tokens at position `caches[0].step`.
          caches: one per block, see `PositionalSelfAttention`.
          length: t, the length of training sequences, which is the unit of spans.
        """
        x, kept = self._embed(tokens[:, None], caches[0].step[None, None]), []
        for block, cache in zip(self.blocks, caches, strict=True):
            x, found = block(x, (length,), is_causal=True, cache=cache, return_intermediates=True)
            kept.append(found["cache"])
        return self._logits(x)[:, 0], tuple(kept)

    def _embed(self, tokens: TokenIds, places: Int[Array, "t 1"]) -> Float[Array, "b t c"]:
        x = self.embedding(tokens) * self.width**0.5
        return x if self.positions is None else x + self.positions(places, self.width).astype(x.dtype)

    def _logits(self, x: Float[Array, "b t c"]) -> Float[Array, "b t v"]:
        x = self.norm(x)
        wide = float32_or_better(x.dtype)
        embedding = self.embedding.embedding.astype(x.dtype)
        return plus(jnp.einsum("btc,vc->btv", x, embedding, preferred_element_type=wide), self.bias)
