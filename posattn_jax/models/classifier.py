"""The Transformer-based classifier."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike

from posattn_jax.axes import Array, Features, Float, KeyMask, Shape
from posattn_jax.nn.blocks import EncoderBlock
from posattn_jax.nn.linear import linear


class Classifier(nn.Module):
    """Dropout, Linear, encoder blocks, one feature vector, and a head of two layers (Alfons 2022, Figure 1).

    Attributes:
      num_classes: the number of logits.
      width: c, of the features.
      blocks: the encoder blocks, in order; each has its own parameters.
      head_dim: the hidden width of the head; None: `width`.
      dropout_rate: of the inputs and of the head.
      readout: which feature vector is classified: of the "last" position (the paper), the "mean" or the "max".
      remat: whether the backward pass computes each block again instead of keeping what it made.
      scan_layers: whether the blocks, which must then be equal, are one loop: compiles once, parameters are stacked.
      layer_norm_epsilon: of the head's layer norm.
      dtype: of the computation; None follows the inputs. Logits are float32 or better.
      param_dtype: of the parameters.
    """

    num_classes: int
    width: int
    blocks: tuple[EncoderBlock, ...]
    head_dim: int | None = None
    dropout_rate: float = 0.0
    readout: Literal["last", "mean", "max"] = "last"
    remat: bool = False
    scan_layers: bool = False
    layer_norm_epsilon: float = 1e-5
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32

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
    ) -> tuple[Float[Array, "b k"], dict[str, Any]]:
        """Classifies what lies on a grid.

        Args:
          inputs: [b t c], such as pixels; the positions of the grid in row-major order.
          grid_shape: S, one to three sizes whose product is t.
          key_mask: [b t], True = keep; the readout ignores the rest ("last": the last position kept).
          reference_shape: the grid the model was trained on, where `grid_shape` is another.
          span_bounds: one a block, half-spans that its span does not exceed, for layouts of a static size; blocks of
            one loop are given the largest.
          deterministic: whether dropout is off; otherwise an rng "dropout" is needed.

        Returns:
          The logits [b, num_classes], and what each block made on the way, as "block_0", "block_1", ...: see
          `PositionalSelfAttention`.
        """
        dtypes = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        x = nn.Dropout(self.dropout_rate)(inputs, deterministic=deterministic)
        x = linear(self.width, inputs.shape[-1], name="embed", **dtypes)(x)

        def run_within(span_bound: Shape | None):
            def run(block: EncoderBlock, x: Features) -> tuple[Features, dict[str, Array]]:
                return block(
                    x,
                    grid_shape,
                    key_mask=key_mask,
                    reference_shape=reference_shape,
                    span_bound=span_bound,
                    deterministic=deterministic,
                )

            return nn.remat(run, prevent_cse=not self.scan_layers) if self.remat else run

        if self.scan_layers:
            largest = None if span_bounds is None else tuple(max(bounds) for bounds in zip(*span_bounds, strict=True))
            x, made = self._scan(run_within(largest), x)
        else:
            made = []
            for block, span_bound in zip(self.blocks, span_bounds or [None] * len(self.blocks), strict=True):
                x, out = run_within(span_bound)(block, x)
                made.append(out)

        x = self._read(x, key_mask)
        x = linear(self.head_dim or self.width, self.width, name="head_hidden", **dtypes)(x)
        x = nn.relu(nn.LayerNorm(self.layer_norm_epsilon, name="head_norm", **dtypes)(x))
        x = nn.Dropout(self.dropout_rate)(x, deterministic=deterministic)
        logits = linear(self.num_classes, x.shape[-1], name="head_output", **dtypes)(x)
        logits = logits.astype(jnp.promote_types(jnp.float32, logits.dtype))
        return logits, {f"block_{i}": out for i, out in enumerate(made)}

    def _scan(self, run, x: Features) -> tuple[Features, list[dict[str, Array]]]:
        if not all(_alike(block, self.blocks[0]) for block in self.blocks):
            raise ValueError("scan_layers=True needs blocks that are all alike")
        scanned = nn.scan(
            run,
            variable_axes={"params": 0},
            split_rngs={"params": True, "dropout": True},
            length=len(self.blocks),
        )
        x, stacked = scanned(self.blocks[0], x)
        return x, [{name: array[i] for name, array in stacked.items()} for i in range(len(self.blocks))]

    def _read(self, x: Features, key_mask: KeyMask | None) -> Float[Array, "b c"]:
        where = None if key_mask is None else key_mask[..., None]
        match self.readout:
            case "last":
                if key_mask is None:
                    return x[:, -1]
                last = x.shape[1] - 1 - jnp.argmax(key_mask[:, ::-1], axis=1)
                return jnp.take_along_axis(x, last[:, None, None], axis=1)[:, 0]
            case "mean":
                return jnp.mean(x, axis=1, where=where)
            case "max":
                return jnp.max(x, axis=1, where=where, initial=-jnp.inf)
            case _:
                raise ValueError(f'readout="{self.readout}": expected "last", "mean" or "max"')


def _alike(a: Any, b: Any) -> bool:
    """Whether two modules have equal fields, wherever they are attached and whatever they are called."""
    if isinstance(a, nn.Module):
        names = [field.name for field in dataclasses.fields(a) if field.name not in ("parent", "name")]
        return type(a) is type(b) and all(_alike(getattr(a, name), getattr(b, name)) for name in names)
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_alike, a, b))
    return a == b
