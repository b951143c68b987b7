"""BERT: an encoder of token ids, and heads for masked tokens, for a label per sequence, and for a label per token."""

import math
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike

from posattn_jax.axes import Array, Features, Float, Int, KeyMask, SegmentIds, Shape
from posattn_jax.models.stack import run_blocks
from posattn_jax.nn.attention import PositionalSelfAttention
from posattn_jax.nn.blocks import EncoderBlock
from posattn_jax.nn.checks import check_rates, check_sizes
from posattn_jax.nn.composite import Composite
from posattn_jax.nn.gating import exact_gelu
from posattn_jax.nn.layers import Dropout
from posattn_jax.nn.places import of_sequence
from posattn_jax.nn.projections import LinearProjections
from posattn_jax.nn.sharding import named
from posattn_jax.ops.initial import NORMAL
from posattn_jax.ops.precision import float32_or_better, plus

TokenIds = Int[Array, "b t"]


def bert_block(
    num_heads: int,
    mlp_dim: int,
    *,
    dropout_rate: float = 0.1,
    kernel_init: Initializer = NORMAL,
    layer_norm_epsilon: float = 1e-12,
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike = jnp.float32,
    **fields: Any,
) -> EncoderBlock:
    """A block of BERT: layer norms after the residuals, exact GELU, dropout of attention weights and of both branches.

    Args:
      num_heads: h.
      mlp_dim: the hidden width of the feed-forward network.
      dropout_rate: the dropout rate of the attention weights and of both branches.
      kernel_init: the initialiser of all linear maps, whose biases are 0.
      layer_norm_epsilon: the epsilon of both layer norms.
      dtype, param_dtype: the dtypes of the computation and of the parameters.
      **fields: fields of `PositionalSelfAttention`: its terms, values, projections, ...; parts for this block only.

    Example:
      >>> from posattn_jax import Content, RelativeBias, bert_block
      >>> block = bert_block(num_heads=2, mlp_dim=8, terms=(Content(), RelativeBias((5,))))
      >>> block.norm, block.attention.num_heads
      ('post', 2)
    """
    dtypes: dict[str, Any] = {"dtype": dtype, "param_dtype": param_dtype}
    attention = {"projections": LinearProjections(kernel_init=kernel_init, **dtypes), "kernel_init": kernel_init}
    return EncoderBlock(
        PositionalSelfAttention(num_heads, dropout_rate=dropout_rate, **(attention | dtypes | fields)),
        mlp_dim,
        dropout_rate,
        mlp_dropout_rate=0.0,
        activation=exact_gelu,
        kernel_init=kernel_init,
        layer_norm_epsilon=layer_norm_epsilon,
        **dtypes,
    )


class Bert(Composite):
    """Encodes token ids as features, as ELECTRA's BERT-small and BERT-base (Chang 2021, appendix A.1).

      x = Linear(drop(LN(scale (token + segment) + position)));  blocks(x)

    The linear map exists only if the embeddings have another width than the blocks.

    Attributes:
      vocabulary_size: the number of token ids.
      width: c, the width of the features.
      blocks: the encoder blocks; see `bert_block`.
      embedding_dim: the width of the embeddings; None: `width`.
      embedding_scale: the factor of token and segment embeddings. Small ones (a standard deviation of .02) would be
        negligible next to sinusoids; Vaswani 2017, section 3.4, multiplies by sqrt(c). Without positions the layer norm
        cancels it.
      max_length: the number of absolute positions; without them sequences may have any length.
      num_segments: the number of segment ids.
      absolute_positions: whether a trained vector is added to every token.
      positions: a module (places [b n 1], e) -> [b n e], of vectors added to the embeddings; None: no vectors.
      dropout_rate: the dropout rate of the embeddings.
      kernel_init: the initialiser of the embeddings and of the linear map.
      remat, scan_layers: see `run_blocks`.
      layer_norm_epsilon: the epsilon of the layer norm.
      dtype: the dtype of the computation; None: float32.
      param_dtype: the dtype of the parameters.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import Bert, bert_block
      >>> model = Bert(vocabulary_size=10, width=8, blocks=(bert_block(num_heads=2, mlp_dim=8),))
      >>> features, variables = model.init_with_output(jax.random.key(0), jnp.array([[2, 5, 3]]))
      >>> features.shape
      (1, 3, 8)
    """

    vocabulary_size: int
    width: int
    blocks: tuple[EncoderBlock, ...]
    embedding_dim: int | None = None
    embedding_scale: float = 1.0
    max_length: int = 128
    num_segments: int = 2
    absolute_positions: bool = True
    positions: nn.Module | None = None
    dropout_rate: float = 0.1
    kernel_init: Initializer = NORMAL
    remat: bool = False
    scan_layers: bool = False
    layer_norm_epsilon: float = 1e-12
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32

    def __post_init__(self):
        check_sizes(self, "vocabulary_size", "width", "embedding_dim")
        check_rates(self, "dropout_rate")
        if self.positions is not None and self.absolute_positions:
            raise ValueError("positions: expected None with absolute_positions=True")
        if not 0 < self.embedding_scale < math.inf:
            raise ValueError(f"embedding_scale={self.embedding_scale}: expected a finite number above 0")
        super().__post_init__()

    def setup(self):
        fields: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        width = self.embedding_dim or self.width
        sizes = {"token_embedding": self.vocabulary_size, "segment_embedding": self.num_segments}
        if self.absolute_positions:
            sizes["position_embedding"] = self.max_length
        for name, size in sizes.items():
            init = named(self.kernel_init, None if name == "position_embedding" else "vocabulary", "width")
            setattr(self, name, nn.Embed(size, width, embedding_init=init, **fields))
        self.embedding_norm = nn.LayerNorm(self.layer_norm_epsilon, **fields)
        if width != self.width:
            init = named(self.kernel_init, None, "width")
            self.embedding_projection = nn.Dense(self.width, kernel_init=init, **fields)
        self.dropout = Dropout(self.dropout_rate)

    def __call__(
        self,
        tokens: TokenIds,
        *,
        segments: TokenIds | None = None,
        key_mask: KeyMask | None = None,
        segment_ids: SegmentIds | None = None,
        span_bounds: Sequence[Shape] | None = None,
        deterministic: bool = True,
        return_intermediates: bool = False,
        return_weights: bool = False,
    ) -> Features | tuple[Features, dict[str, Any]]:
        """Encodes sequences.

        Args:
          tokens: ids [b t].
          segments: ids [b t] of the sentence that a token belongs to; None: all belong to the first.
          key_mask: [b t], True = a token, False = padding, which does not change the features of tokens.
          segment_ids: [b t], if several sequences share a row: tokens attend to their own sequence only, and its
            positions start at 0. None: a row is one sequence.
          span_bounds: see `run_blocks`.
          deterministic: whether dropout is off; otherwise an rng "dropout" is needed.
          return_intermediates, return_weights: whether to return the blocks' intermediates, without or with weights.

        Returns:
          Features [b t c]. If asked for, also the intermediates of each block, as "block_0", ...: see
          `PositionalSelfAttention`.

        Raises:
          ValueError: sequences longer than the absolute positions, or blocks that cannot keep segments apart.
        """
        length = tokens.shape[1]
        places = of_sequence(length, segment_ids)
        x = self.token_embedding(tokens)
        x += self.segment_embedding(jnp.zeros_like(tokens) if segments is None else segments)
        x *= self.embedding_scale
        if self.absolute_positions:
            if length > self.max_length:
                raise ValueError(f"sequences of {length} tokens: expected at most max_length={self.max_length}")
            x += self.position_embedding(places[..., 0])
        if self.positions is not None:
            x += self.positions(places, x.shape[-1]).astype(x.dtype)
        x = self.dropout(self.embedding_norm(x), deterministic=deterministic)
        if x.shape[-1] != self.width:
            x = self.embedding_projection(x)
        x, intermediates = run_blocks(
            self,
            x,
            (length,),
            span_bounds=span_bounds,
            key_mask=key_mask,
            segment_ids=segment_ids,
            deterministic=deterministic,
            return_weights=return_weights,
        )
        return (x, intermediates) if return_intermediates or return_weights else x

    def token_logits(self, embedded: Float[Array, "*batch e"]) -> Float[Array, "*batch v"]:
        """The products of these vectors, which are as wide as the embeddings, with every token's embedding."""
        return self.token_embedding.attend(embedded)


class MaskedLanguageModel(Composite):
    """Predicts masked tokens: logits = LN(gelu(Linear(features))) . E + bias, where E are the encoder's embeddings.

    Attributes:
      encoder: the encoder.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import Bert, MaskedLanguageModel, bert_block
      >>> model = MaskedLanguageModel(Bert(vocabulary_size=10, width=8, blocks=(bert_block(num_heads=2, mlp_dim=8),)))
      >>> tokens, masked = jnp.array([[2, 5, 3]]), jnp.array([[1]])
      >>> logits, variables = model.init_with_output(jax.random.key(0), tokens, targets=masked)
      >>> logits.shape
      (1, 1, 10)
    """

    encoder: Bert

    @nn.compact
    def __call__(
        self,
        tokens: TokenIds,
        *,
        targets: Int[Array, "b m"] | None = None,
        return_intermediates: bool = False,
        return_weights: bool = False,
        **inputs: Any,
    ) -> Float[Array, "b m v"] | tuple[Float[Array, "b m v"], dict[str, Any]]:
        """The logits of the tokens at the positions `targets`, [b m v]; None: at all positions.

        They are float32 or better. The other arguments, and the intermediates, are those of `Bert`.
        """
        encoder = self.encoder
        fields: dict[str, Any] = {"dtype": encoder.dtype, "param_dtype": encoder.param_dtype}
        encoded: Any = encoder(tokens, return_intermediates=True, return_weights=return_weights, **inputs)
        x, intermediates = encoded
        if targets is not None:
            x = jnp.take_along_axis(x, targets[..., None], axis=1)
        init = named(encoder.kernel_init, None, "width")
        x = nn.Dense(encoder.embedding_dim or encoder.width, kernel_init=init, name="transform", **fields)(x)
        x = nn.LayerNorm(encoder.layer_norm_epsilon, name="norm", **fields)(exact_gelu(x))
        bias = self.param("bias", nn.initializers.zeros, (encoder.vocabulary_size,), encoder.param_dtype)
        logits = encoder.token_logits(x)
        logits = plus(logits.astype(float32_or_better(logits.dtype)), bias)
        return (logits, intermediates) if return_intermediates or return_weights else logits


class SequenceClassifier(Composite):
    """Classifies sequences: Linear(drop(tanh(Linear(features of the first token)))).

    Attributes:
      encoder: the encoder.
      num_outputs: the number of logits; 1 for regression.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import Bert, SequenceClassifier, bert_block
      >>> encoder = Bert(vocabulary_size=10, width=8, blocks=(bert_block(num_heads=2, mlp_dim=8),))
      >>> model = SequenceClassifier(encoder, num_outputs=3)
      >>> tokens, segments = jnp.array([[2, 5, 3]]), jnp.array([[0, 0, 1]])
      >>> logits, variables = model.init_with_output(jax.random.key(0), tokens, segments=segments)
      >>> logits.shape
      (1, 3)
    """

    encoder: Bert
    num_outputs: int

    @nn.compact
    def __call__(
        self,
        tokens: TokenIds,
        *,
        deterministic: bool = True,
        return_intermediates: bool = False,
        return_weights: bool = False,
        **inputs: Any,
    ) -> Float[Array, "b k"] | tuple[Float[Array, "b k"], dict[str, Any]]:
        """Logits [b num_outputs], float32 or better. The arguments, and the intermediates, are those of `Bert`.

        Raises:
          ValueError: rows that several sequences share.
        """
        if inputs.get("segment_ids") is not None:
            raise ValueError("segment_ids is given: SequenceClassifier reads the first token of a row, of one sequence")
        encoder = self.encoder
        fields: dict[str, Any] = {
            "kernel_init": named(encoder.kernel_init, None, "width"),
            "dtype": encoder.dtype,
            "param_dtype": encoder.param_dtype,
        }
        wanted = {"return_intermediates": True, "return_weights": return_weights}
        encoded: Any = encoder(tokens, deterministic=deterministic, **wanted, **inputs)
        x, intermediates = encoded
        x = nn.tanh(nn.Dense(encoder.width, name="pooler", **fields)(x[:, 0]))
        x = Dropout(encoder.dropout_rate)(x, deterministic=deterministic)
        logits = nn.Dense(self.num_outputs, name="head", **fields)(x)
        logits = logits.astype(float32_or_better(logits.dtype))
        return (logits, intermediates) if return_intermediates or return_weights else logits


class TokenClassifier(Composite):
    """Classifies every token: Linear(drop(features)), as in BERT's tagging (Devlin 2019, section 5.3).

    Attributes:
      encoder: the encoder.
      num_outputs: the number of logits of a token.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import Bert, TokenClassifier, bert_block
      >>> encoder = Bert(vocabulary_size=10, width=8, blocks=(bert_block(num_heads=2, mlp_dim=8),))
      >>> model = TokenClassifier(encoder, num_outputs=4)
      >>> logits, variables = model.init_with_output(jax.random.key(0), jnp.array([[2, 5, 3]]))
      >>> logits.shape
      (1, 3, 4)
    """

    encoder: Bert
    num_outputs: int

    @nn.compact
    def __call__(
        self,
        tokens: TokenIds,
        *,
        deterministic: bool = True,
        return_intermediates: bool = False,
        return_weights: bool = False,
        **inputs: Any,
    ) -> Float[Array, "b t k"] | tuple[Float[Array, "b t k"], dict[str, Any]]:
        """Logits [b t num_outputs], float32 or better. The arguments, and the intermediates, are those of `Bert`."""
        encoder = self.encoder
        wanted = {"return_intermediates": True, "return_weights": return_weights}
        encoded: Any = encoder(tokens, deterministic=deterministic, **wanted, **inputs)
        x, intermediates = encoded
        x = Dropout(encoder.dropout_rate)(x, deterministic=deterministic)
        fields: dict[str, Any] = {"dtype": encoder.dtype, "param_dtype": encoder.param_dtype}
        init = named(encoder.kernel_init, None, "width")
        logits = nn.Dense(self.num_outputs, kernel_init=init, name="head", **fields)(x)
        logits = logits.astype(float32_or_better(logits.dtype))
        return (logits, intermediates) if return_intermediates or return_weights else logits
