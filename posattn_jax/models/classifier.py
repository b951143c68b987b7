"""The classifier of Alfons 2022, a stack of Transformer encoder blocks."""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike

from posattn_jax.axes import Array, Features, Float, KeyMask, Shape, Sizes
from posattn_jax.models.stack import Pooling, add_positions, pool, run_blocks
from posattn_jax.nn.blocks import EncoderBlock
from posattn_jax.nn.checks import check_rates, check_sizes
from posattn_jax.nn.composite import Composite
from posattn_jax.nn.layers import Dropout, linear
from posattn_jax.ops.precision import float32_or_better


class Classifier(Composite):
    """Dropout, Linear, encoder blocks, one feature vector, and a head of two layers (Alfons 2022, Figure 1).

    Attributes:
      num_classes: the number of logits.
      width: c, the width of the features.
      blocks: the encoder blocks, in order.
      head_dim: the hidden width of the head; None: `width`.
      dropout_rate: the dropout rate of the inputs and of the head.
      pooling: which feature vector is classified: that of the "last" position (the paper), the "mean" or the "max".
      positions: a module (places [n p], c) -> [n c] of vectors that are added to the inputs of the first block:
        `LearnedPositions`, `SinusoidalPositions`, `FourierPositions`; None: no vectors.
      remat, scan_layers: see `run_blocks`.
      layer_norm_epsilon: the epsilon of the head's layer norm.
      dtype: the dtype of the computation; None follows the inputs. Logits are float32 or better.
      param_dtype: the dtype of the parameters.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import Classifier, EncoderBlock, PositionalSelfAttention
      >>> block = EncoderBlock(PositionalSelfAttention(num_heads=2), mlp_dim=8)
      >>> model = Classifier(num_classes=3, width=8, blocks=(block,))
      >>> pixels = jnp.ones((1, 3 * 4, 1))
      >>> logits, variables = model.init_with_output(jax.random.key(0), pixels, (3, 4))
      >>> logits.shape
      (1, 3)
    """

    num_classes: int
    width: int
    blocks: tuple[EncoderBlock, ...]
    head_dim: int | None = None
    dropout_rate: float = 0.0
    pooling: Pooling = "last"
    positions: nn.Module | None = None
    remat: bool = False
    scan_layers: bool = False
    layer_norm_epsilon: float = 1e-5
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32

    def __post_init__(self):
        check_sizes(self, "num_classes", "width", "head_dim")
        check_rates(self, "dropout_rate")
        super().__post_init__()

    def token_grid(self, grid_shape: Shape) -> Sizes:
        """The grid of tokens, on which attention runs: every position is a token."""
        return tuple(grid_shape)

    @nn.compact
    def __call__(
        self,
        inputs: Features,
        grid_shape: Shape,
        *,
        key_mask: KeyMask | None = None,
        reference_shape: Shape | None = None,
        span_bounds: Sequence[Shape] | None = None,
        deterministic: bool = True,
        return_intermediates: bool = False,
        return_weights: bool = False,
    ) -> Float[Array, "b k"] | tuple[Float[Array, "b k"], dict[str, Any]]:
        """Classifies features on a grid.

        Args:
          inputs: [b t c], such as pixels; the positions of the grid in row-major order.
          grid_shape: S, one to three sizes whose product is t.
          key_mask: [b t], True = keep; the pooling ignores the rest ("last": the last position kept).
          reference_shape: the grid the model was trained on, if it is not `grid_shape`.
          span_bounds: one per block: half-spans that its span does not exceed, for implementations of a static size.
            Blocks of one loop use the largest.
          deterministic: whether dropout is off; otherwise an rng "dropout" is needed.
          return_intermediates, return_weights: whether to return the blocks' intermediates, without or with weights.

        Returns:
          The logits [b, num_classes]. If asked for, also the intermediates of each block, as "block_0", ...: see
          `PositionalSelfAttention`.
        """
        dtypes = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        x = Dropout(self.dropout_rate)(inputs, deterministic=deterministic)
        x = linear(self.width, inputs.shape[-1], (None, "width"), name="embed", **dtypes)(x)
        x = add_positions(x, self.positions, grid_shape)

        x, intermediates = run_blocks(
            self,
            x,
            grid_shape,
            span_bounds=span_bounds,
            key_mask=key_mask,
            reference_shape=reference_shape,
            deterministic=deterministic,
            return_weights=return_weights,
        )
        x = pool(x, self.pooling, key_mask)
        x = linear(self.head_dim or self.width, self.width, (None, "width"), name="head_hidden", **dtypes)(x)
        x = nn.relu(nn.LayerNorm(self.layer_norm_epsilon, name="head_norm", **dtypes)(x))
        x = Dropout(self.dropout_rate)(x, deterministic=deterministic)
        logits = linear(self.num_classes, x.shape[-1], (None, "width"), name="head_output", **dtypes)(x)
        logits = logits.astype(float32_or_better(logits.dtype))
        return (logits, intermediates) if return_intermediates or return_weights else logits
