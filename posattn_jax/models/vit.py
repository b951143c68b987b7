"""The vision transformer."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import flax.linen as nn
import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike

from posattn_jax.axes import Array, Features, Float, KeyMask, PointPositions, Shape, Sizes
from posattn_jax.models.stack import add_positions, pool, run_blocks
from posattn_jax.nn.blocks import EncoderBlock
from posattn_jax.nn.checks import check_rates, check_sizes
from posattn_jax.nn.composite import Composite
from posattn_jax.nn.layers import Dropout, linear
from posattn_jax.ops import grid
from posattn_jax.ops.initial import STANDARD_NORMAL
from posattn_jax.ops.precision import float32_or_better, plus


class VisionTransformer(Composite):
    """Patches, encoder blocks, one feature vector, and a linear head (Dosovitskiy 2021, in the form of Fan 2025).

      x = LN(Linear(LN(patch))), with a class token in front and a trained vector added to each token, if asked for
      logits = Linear(read(LN(blocks(drop(x)))))

    It works in one to three dimensions, and for points, where each point is a token.

    Attributes:
      num_classes: the number of logits; 0: there is no head, and its inputs [b c] are returned.
      width: c, the width of the features.
      blocks: the encoder blocks, in order; each has its own parameters. The paper's have norm="pre" and GELU.
      patch_shape: the size of a patch in every dimension; it must divide the grid.
      pooling: what is classified: the "class" token; or the "mean" or the "max" of all tokens, without a class token.
      absolute_positions: whether a trained vector is added to every token. The grid must then be that of training.
      positions: a module (places [n p], c) -> [n c], of vectors added to the tokens of the grid; None: no vectors.
      patch_norms: whether there are layer norms before and after the embedding of patches; Dosovitskiy 2021 has none.
      embedding_init: the initialiser of the class token and the trained vectors.
      dropout_rate: the dropout rate of the tokens, after the vectors are added.
      remat, scan_layers: see `run_blocks`.
      layer_norm_epsilon: the epsilon of the layer norms.
      dtype: the dtype of the computation; None follows the inputs. Logits are float32 or better.
      param_dtype: the dtype of the parameters.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import EncoderBlock, PositionalSelfAttention, VisionTransformer
      >>> block = EncoderBlock(PositionalSelfAttention(num_heads=2), mlp_dim=8, norm="pre")
      >>> model = VisionTransformer(num_classes=3, width=8, blocks=(block,), patch_shape=(2, 2), pooling="mean")
      >>> pixels = jnp.ones((1, 6 * 8, 1))
      >>> logits, variables = model.init_with_output(jax.random.key(0), pixels, (6, 8))
      >>> logits.shape, model.token_grid((6, 8))
      ((1, 3), (3, 4))
    """

    num_classes: int
    width: int
    blocks: tuple[EncoderBlock, ...]
    patch_shape: tuple[int, ...]
    pooling: Literal["class", "mean", "max"] = "class"
    absolute_positions: bool = True
    positions: nn.Module | None = None
    patch_norms: bool = True
    embedding_init: Initializer = STANDARD_NORMAL
    dropout_rate: float = 0.0
    remat: bool = False
    scan_layers: bool = False
    layer_norm_epsilon: float = 1e-5
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32

    def __post_init__(self):
        check_sizes(self, "width")
        check_rates(self, "dropout_rate")
        if self.positions is not None and self.absolute_positions:
            raise ValueError("positions: expected None with absolute_positions=True")
        super().__post_init__()

    def token_grid(self, grid_shape: Shape) -> Sizes:
        """The grid of patches; ValueError if patches do not fill the grid."""
        return patch_grid(grid_shape, self.patch_shape)

    @nn.compact
    def __call__(
        self,
        inputs: Features,
        grid_shape: Shape,
        *,
        key_mask: KeyMask | None = None,
        reference_shape: Shape | None = None,
        span_bounds: Sequence[Shape] | None = None,
        positions: PointPositions | None = None,
        deterministic: bool = True,
        return_intermediates: bool = False,
        return_weights: bool = False,
    ) -> Float[Array, "b k"] | tuple[Float[Array, "b k"], dict[str, Any]]:
        """Classifies features on a grid, or a cloud of points.

        Args:
          inputs: [b t c], such as pixels; the positions of the grid in row-major order.
          grid_shape: S, one to three sizes whose product is t; (n,) for n points.
          key_mask: one per token [b t], True = keep; the pooling ignores the rest. For patches of one position only.
          reference_shape: the grid the model was trained on, if it is not `grid_shape`.
          span_bounds: one per block: half-spans in patches that its span does not exceed, for implementations of a
            static size.
          positions: [b n p], the positions of points, with patch_shape=(1,).
          deterministic: whether dropout is off; otherwise an rng "dropout" is needed.
          return_intermediates, return_weights: whether to return the blocks' intermediates, without or with weights.

        Returns:
          The logits [b, num_classes], or without a head the features [b c]. If asked for, also the intermediates of
          each block, as "block_0", ...: see `PositionalSelfAttention`.

        Raises:
          ValueError: patches that do not fit the grid, or an invalid field.
        """
        if self.pooling not in ("class", "mean", "max"):
            raise ValueError(f'pooling="{self.pooling}": expected "class", "mean" or "max"')
        tokens = self.token_grid(grid_shape)
        if key_mask is not None and math.prod(self.patch_shape) != 1:
            raise ValueError(f"patch_shape={self.patch_shape}: expected patches of one position with key_mask")
        reference = None if reference_shape is None else self.token_grid(reference_shape)
        if self.absolute_positions and (positions is not None or (reference or tokens) != tokens):
            raise ValueError("absolute_positions=True needs the grid of the training")
        dtypes = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        x = patchify(inputs, grid_shape, self.patch_shape)
        if self.patch_norms:
            x = nn.LayerNorm(self.layer_norm_epsilon, name="patch_norm", **dtypes)(x)
        x = linear(self.width, x.shape[-1], (None, "width"), name="embed", **dtypes)(x)
        if self.patch_norms:
            x = nn.LayerNorm(self.layer_norm_epsilon, name="embed_norm", **dtypes)(x)
        cls = int(self.pooling == "class")
        if cls:
            token = self.param("class_token", self.embedding_init, (1, self.width), self.param_dtype)
            x, token = promote_dtype(x, token, dtype=self.dtype)
            x = jnp.concatenate([jnp.broadcast_to(token, (x.shape[0], *token.shape)), x], 1)
            if key_mask is not None:
                key_mask = jnp.pad(key_mask, ((0, 0), (cls, 0)), constant_values=True)
        if self.absolute_positions:
            added = self.param("position_embedding", self.embedding_init, x.shape[1:], self.param_dtype)
            x, added = promote_dtype(x, added, dtype=self.dtype)
            x = plus(x, added)
        if positions is not None and self.positions is not None:
            raise ValueError("the model's positions: expected None for points, which lie on no grid")
        x = add_positions(x, self.positions, tokens, cls)
        x = Dropout(self.dropout_rate)(x, deterministic=deterministic)
        x, intermediates = run_blocks(
            self,
            x,
            tokens,
            span_bounds=span_bounds,
            key_mask=key_mask,
            reference_shape=reference,
            num_class_tokens=cls,
            positions=positions,
            deterministic=deterministic,
            return_weights=return_weights,
        )
        x = nn.LayerNorm(self.layer_norm_epsilon, name="final_norm", **dtypes)(x)
        x = x[:, 0] if self.pooling == "class" else pool(x, self.pooling, key_mask)
        has_head = self.num_classes > 0
        logits = linear(self.num_classes, self.width, (None, "width"), name="head", **dtypes)(x) if has_head else x
        logits = logits.astype(float32_or_better(logits.dtype))
        return (logits, intermediates) if return_intermediates or return_weights else logits


def patchify(inputs: Features, grid_shape: Shape, patch_shape: Shape) -> Float[Array, "b n k"]:
    """[b, prod(S), c] -> [b, prod(S / patch), prod(patch) c]; patches and their positions are in row-major order."""
    p = len(grid_shape)
    sizes = [size for s, patch in zip(grid_shape, patch_shape, strict=True) for size in (s // patch, patch)]
    x = inputs.reshape(inputs.shape[0], *sizes, inputs.shape[-1])
    x = x.transpose(0, *range(1, 2 * p, 2), *range(2, 2 * p + 1, 2), 2 * p + 1)
    return x.reshape(inputs.shape[0], math.prod(sizes[::2]), math.prod(sizes[1::2]) * inputs.shape[-1])


def patch_grid(grid_shape: Shape, patch_shape: Sequence[int]) -> Sizes:
    """The grid of the patches of a grid; ValueError if they do not fill it."""
    shape = grid.check_grid(grid_shape)
    if len(patch_shape) != len(shape) or min(patch_shape) < 1:
        raise ValueError(f"patch_shape={patch_shape}: expected {len(shape)} sizes for grid_shape={shape}")
    if any(size % patch for size, patch in zip(shape, patch_shape, strict=True)):
        raise ValueError(f"patch_shape={patch_shape} does not divide grid_shape={shape}")
    return tuple(size // patch for size, patch in zip(shape, patch_shape, strict=True))
