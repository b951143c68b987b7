"""Heads that do not attend: a dynamic convolution whose kernel depends on a span of tokens (ConvBERT, Jiang 2020)."""

import itertools
import math
from typing import Any, Literal, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike

from posattn_jax.axes import Array, Query, Shape
from posattn_jax.nn.layers import Dropout
from posattn_jax.nn.sharding import named
from posattn_jax.nn.tokens import Tokens
from posattn_jax.nn.values import DepthwiseConvolution
from posattn_jax.ops.initial import XAVIER
from posattn_jax.ops.kernels import applied_offsets, check_kernel
from posattn_jax.ops.precision import float32_or_better
from posattn_jax.ops.scores import masked_softmax

KernelAt = Literal["query", "key"]


class SpanConvolution(nn.Module):
    """As many convolution heads as attention heads, for `extra_heads`: weighted sums over neighbours within a kernel.

      c_t = Linear(q_t * Linear(depthwise(x)_t))                                one score c_t[o] per offset o and head
      outputs_t = sum_o dropout(softmax_o(c_t[o])) Linear(x)_{t+o}              kernel_at = "query", as the paper
      outputs_t = sum_o dropout(softmax_o(c_{t+o}[o])) Linear(x)_{t+o}          kernel_at = "key", as Chang 2021's code

    Neighbours that are masked or off the grid add nothing. With "query" the softmax is over all offsets of the kernel,
    including those neighbours. With "key" the scores are those of the query's neighbours, and the softmax leaves out
    neighbours that are masked or off the grid. The first linear map sees the features of all heads at once.

    In a causal layer there are only the offsets o that do not lie after t, in the order of the layer: the depthwise
    convolution, the softmax and the sum leave out the others. The parameters stay those of the whole kernel.

    Attributes:
      kernel_shape: K, odd sizes.
      kernel_at: where the scores are computed, see above.
      dropout_rate: the dropout rate of the weights: attention dropout in the code of Chang 2021; the ConvBERT paper has
        none.
      kernel_init: the initialiser of the linear maps, whose biases are 0.
      dtype, param_dtype: the dtypes of the computation, where None follows the inputs, and of the parameters.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import PositionalSelfAttention, SpanConvolution
      >>> layer = PositionalSelfAttention(num_heads=2, head_dim=2, extra_heads=SpanConvolution((3,)))
      >>> outputs, variables = layer.init_with_output(jax.random.key(0), jnp.ones((1, 5, 8)), (5,))
      >>> outputs.shape
      (1, 5, 8)
    """

    kernel_shape: tuple[int, ...]
    kernel_at: KernelAt = "query"
    dropout_rate: float = 0.0
    kernel_init: Initializer = XAVIER
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, query: Query, tokens: Tokens, deterministic: bool = True) -> Query:
        """The outputs of these heads [b t h d].

        Raises:
          ValueError: class tokens or points, which have no neighbours on a grid, or an invalid field.
        """
        if self.kernel_at not in get_args(KernelAt):
            raise ValueError(f'kernel_at="{self.kernel_at}": expected "query" or "key"')
        if tokens.num_class_tokens or tokens.positions is not None:
            raise ValueError(
                "num_class_tokens, positions: expected none with SpanConvolution, which supports only grids"
            )
        kernel_shape = check_kernel(self.kernel_shape, tokens.grid_shape)
        b, n, h, d = query.shape
        dtypes: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}

        def linear(features: int, name: str) -> nn.Dense:
            return nn.Dense(features, kernel_init=named(self.kernel_init, "width", None), name=name, **dtypes)

        span = DepthwiseConvolution(self.kernel_shape, name="depthwise", **dtypes)(tokens.inputs, tokens)
        span = linear(h * d, "pointwise")(span)
        logits = linear(h * math.prod(kernel_shape), "kernel")(query.reshape(b, n, h * d) * span)
        logits = logits.reshape(b, n, h, math.prod(kernel_shape)).astype(float32_or_better(logits.dtype))
        offsets = list(itertools.product(*(range(-(k // 2), k // 2 + 1) for k in kernel_shape)))
        if tokens.is_causal:
            applied = np.flatnonzero(applied_offsets(kernel_shape, tokens.is_causal))
            logits, offsets = logits[..., applied], [offsets[i] for i in applied]

        def at_neighbours(x: Array) -> Array:
            """out[:, t, ..., o] = x[:, t + o, ..., o], 0 off the grid: [b t ... o] -> [b t ... o]."""
            return jnp.stack([neighbours(x[..., i], tokens.grid_shape, o) for i, o in enumerate(offsets)], -1)

        masks = []
        if self.kernel_at == "key":
            kept = jnp.ones((b, n), bool) if tokens.key_mask is None else tokens.key_mask
            masks = [at_neighbours(jnp.broadcast_to(kept[..., None, None], (b, n, 1, len(offsets))))]
            logits = at_neighbours(logits)
        value = linear(h * d, "value")(tokens.inputs).reshape(b, n, h, d)
        weights = masked_softmax(logits, masks).astype(value.dtype)
        weights = Dropout(self.dropout_rate)(weights, deterministic=deterministic)
        if tokens.key_mask is not None:
            value = jnp.where(tokens.key_mask[..., None, None], value, 0)
        outputs = jnp.zeros_like(value)
        for i, offset in enumerate(offsets):
            outputs += weights[..., i, None] * neighbours(value, tokens.grid_shape, offset)
        return outputs


def neighbours(x: Array, grid_shape: Shape, offset: Shape) -> Array:
    """out[:, t] = x[:, t + offset], 0 where that is off the grid: [b t ...] -> [b t ...]."""
    y = x.reshape(x.shape[0], *grid_shape, *x.shape[2:])
    for axis, (o, size) in enumerate(zip(offset, grid_shape, strict=True), 1):
        o = max(-size, min(o, size))
        y = jax.lax.slice_in_dim(y, max(o, 0), size + min(o, 0), axis=axis)
        y = jnp.pad(y, [(0, 0)] * axis + [(max(-o, 0), max(o, 0))] + [(0, 0)] * (y.ndim - axis - 1))
    return y.reshape(x.shape)
