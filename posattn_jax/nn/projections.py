"""From features to queries, keys and values: the `projections` slot of attention."""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike

from posattn_jax.axes import Key, Query, SharedKey, Value
from posattn_jax.nn.axis_names import named
from posattn_jax.nn.parts import PARTS, Part
from posattn_jax.nn.tokens import Tokens
from posattn_jax.nn.values import DepthwiseConvolution
from posattn_jax.ops.initial import fused_xavier
from posattn_jax.ops.projections import fused_projection


class LinearProjections(nn.Module):
    """One fused linear map c -> (3, h, d), Xavier-uniform over its whole fan c + 3 h d (as the code of Alfons 2022).

    Attributes:
      use_bias: whether q, k and v have biases (Algorithm 1 prints none, the code has them).
      kernel_init: of the fused kernel [c, 3, h, d].
      bias_init: of the fused bias [3, h, d].
      dtype: of the computation; None follows the inputs.
      param_dtype: of the parameters.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import LinearProjections, PositionalSelfAttention
      >>> layer = PositionalSelfAttention(num_heads=2, projections=LinearProjections(use_bias=False))
      >>> outputs, variables = layer.init_with_output(jax.random.key(0), jnp.ones((1, 3 * 4, 8)), (3, 4))
      >>> jax.tree.map(jnp.shape, variables["params"]["projections"])
      {'kernel': (8, 3, 2, 4)}
    """

    use_bias: bool = True
    kernel_init: Initializer = fused_xavier
    bias_init: Initializer = nn.initializers.zeros
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, tokens: Tokens, parts: tuple[Part, ...] = PARTS
    ) -> tuple[Query | None, SharedKey | None, SharedKey | None]:
        """Query, key and value; None for those that are not among `parts`, of which there are no parameters either.

        Where the layer has fewer heads of keys and values, the query has a kernel of its own.
        """
        if tokens.num_kv_heads < tokens.num_heads:
            of_queries = self._projected(tokens, tuple(p for p in parts if p == "query"), tokens.num_heads, "query_")
            others = tuple(p for p in parts if p != "query")
            projected = of_queries | self._projected(tokens, others, tokens.num_kv_heads, "key_value_")
        else:
            projected = self._projected(tokens, parts, tokens.num_heads)
        return projected.get("query"), projected.get("key"), projected.get("value")

    def _projected(self, tokens: Tokens, parts: tuple[Part, ...], num_heads: int, prefix: str = "") -> dict[Part, Any]:
        """These parts, of one fused kernel."""
        if not parts:
            return {}
        shape = (len(parts), num_heads, tokens.head_dim)
        kernel_init, bias_init = (
            named(self.kernel_init, "width", None, "heads", None),
            named(self.bias_init, "heads", None),
        )
        kernel = self.param(f"{prefix}kernel", kernel_init, (tokens.inputs.shape[-1], *shape), self.param_dtype)
        bias = self.param(f"{prefix}bias", bias_init, shape, self.param_dtype) if self.use_bias else None
        inputs, kernel, bias = nn.dtypes.promote_dtype(tokens.inputs, kernel, bias, dtype=self.dtype)
        return dict(zip(parts, fused_projection(inputs, kernel, bias), strict=True))


class ConvolutionalProjections(nn.Module):
    """Depthwise-separable convolutions for the first half of the heads of some parts, linear maps for all else.

      part = [Linear(depthwise(x)); Linear(x)], the two halves of the heads (Chang 2021, section 5)

    Attributes:
      kernel_shape: K, odd sizes.
      convolved: the parts whose first heads are convolved.
      use_bias: whether the linear maps have biases; the convolutions always have.
      kernel_init, bias_init: of all linear maps.
      dtype: of the computation; None follows the inputs.
      param_dtype: of the parameters.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import ConvolutionalProjections, PositionalSelfAttention
      >>> layer = PositionalSelfAttention(num_heads=2, projections=ConvolutionalProjections((3, 3)))
      >>> outputs, variables = layer.init_with_output(jax.random.key(0), jnp.ones((1, 3 * 4, 8)), (3, 4))
      >>> sorted(variables["params"]["projections"])
      ['key_depthwise', 'key_linear', 'key_pointwise', 'linear', 'query_depthwise', 'query_linear', 'query_pointwise']
    """

    kernel_shape: tuple[int, ...]
    convolved: tuple[Part, ...] = ("query", "key")
    use_bias: bool = True
    kernel_init: Initializer = fused_xavier
    bias_init: Initializer = nn.initializers.zeros
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, tokens: Tokens, parts: tuple[Part, ...] = PARTS
    ) -> tuple[Query | None, Key | None, Value | None]:
        """As `LinearProjections`; ValueError for a single head, which has no half."""
        if tokens.num_kv_heads < tokens.num_heads:
            raise ValueError(
                f"num_kv_heads={tokens.num_kv_heads}: ConvolutionalProjections has as many as queries have"
            )
        half = tokens.num_heads // 2
        if not half:
            raise ValueError(f"num_heads={tokens.num_heads}: half of the heads are to be convolved")
        dtypes = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        linear = functools.partial(
            LinearProjections, use_bias=self.use_bias, kernel_init=self.kernel_init, bias_init=self.bias_init, **dtypes
        )
        plain = linear(name="linear")(tokens, tuple(part for part in parts if part not in self.convolved))
        projected = dict(zip(PARTS, plain, strict=True))
        for part in (part for part in parts if part in self.convolved):
            convolve = DepthwiseConvolution(self.kernel_shape, name=f"{part}_depthwise", **dtypes)
            halves = []
            for name, inputs, num_heads in (
                ("pointwise", convolve(tokens.inputs, tokens), half),
                ("linear", tokens.inputs, tokens.num_heads - half),
            ):
                some = dataclasses.replace(tokens, inputs=inputs, num_heads=num_heads, num_kv_heads=0)
                halves.append(linear(name=f"{part}_{name}")(some, (part,))[PARTS.index(part)])
            projected[part] = jnp.concatenate(halves, 2)
        return projected["query"], projected["key"], projected["value"]
