"""From features to queries, keys and values: the `projections` slot of attention."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype
from jax import lax
from jax.lax import PrecisionLike
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike

from posattn_jax.axes import Array, Features, Float, Key, Query, SharedKey, Sizes, Value
from posattn_jax.nn.parts import PARTS, Part
from posattn_jax.nn.sharding import named
from posattn_jax.nn.tokens import Tokens
from posattn_jax.nn.values import DepthwiseConvolution
from posattn_jax.ops.initial import fused_xavier
from posattn_jax.ops.precision import promoted


class LinearProjections(nn.Module, kw_only=True):
    """One fused linear map c -> (3, h, d), Xavier-uniform over its whole fan c + 3 h d (as in the code of Alfons 2022).

    Attributes:
      use_bias: whether q, k and v have biases (Algorithm 1 has none, the paper's code has).
      kernel_init: the initialiser of the fused kernel [c, 3, h, d].
      bias_init: the initialiser of the fused bias [3, h, d].
      precision: the precision of the product, as in `jax.lax.Precision`; None: JAX's default.
      dot_general: the function that computes the product, such as a quantised one; None: `jax.lax.dot_general`.
      dtype, param_dtype: the dtypes of the computation, where None follows the inputs, and of the parameters.

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
    precision: PrecisionLike = None
    dot_general: Callable | None = None
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, tokens: Tokens, parts: tuple[Part, ...] = PARTS
    ) -> tuple[Query | None, SharedKey | None, SharedKey | None]:
        """Query, key and value; None for those that are not in `parts`, which have no parameters either.

        If keys and values have fewer heads than queries, or come from other tokens, the query has its own kernel.
        """
        heads = (tokens.num_heads, tokens.head_dim), (tokens.num_kv_heads, tokens.head_dim)
        if tokens.num_kv_heads < tokens.num_heads or tokens.memory is not None:
            projected = self._projected(tokens.inputs, ("query",) if "query" in parts else (), heads[0], "query_")
            others: tuple[Part, ...] = tuple(part for part in parts if part != "query")
            projected |= self._projected(tokens.keyed, others, heads[1], "key_value_")
        else:
            projected = self._projected(tokens.inputs, parts, heads[0])
        return projected.get("query"), projected.get("key"), projected.get("value")

    def _projected(self, inputs: Features, parts: tuple[Part, ...], heads: Sizes, prefix: str = "") -> dict[Part, Any]:
        """Projects these parts with one fused kernel."""
        if not parts:
            return {}
        shape = (len(parts), *heads)
        kernel_init, bias_init = (
            named(self.kernel_init, "width", None, "heads", None),
            named(self.bias_init, "heads", None),
        )
        kernel = self.param(f"{prefix}kernel", kernel_init, (inputs.shape[-1], *shape), self.param_dtype)
        bias = self.param(f"{prefix}bias", bias_init, shape, self.param_dtype) if self.use_bias else None
        dtype = self.dtype or promoted(inputs, kernel)
        inputs, kernel, bias = promote_dtype(inputs, kernel, bias, dtype=dtype)
        product = {"precision": self.precision, "dot_general": self.dot_general}
        return dict(zip(parts, fused_projection(inputs, kernel, bias, **product), strict=True))


class ConvolutionalProjections(nn.Module):
    """Depthwise-separable convolutions for the first half of the heads of some parts, linear maps for the rest.

      part = [Linear(depthwise(x)); Linear(x)], the two halves of the heads (Chang 2021, section 5)

    In a causal layer the convolutions are causal too: see `DepthwiseConvolution`.

    Attributes:
      kernel_shape: K, odd sizes.
      convolved: the parts whose first heads are convolved.
      use_bias: whether the linear maps have biases; the convolutions always do.
      kernel_init, bias_init, precision, dot_general: as in `LinearProjections`, for all linear maps.
      dtype, param_dtype: the dtypes of the computation, where None follows the inputs, and of the parameters.

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
    precision: PrecisionLike = None
    dot_general: Callable | None = None
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, tokens: Tokens, parts: tuple[Part, ...] = PARTS
    ) -> tuple[Query | None, Key | None, Value | None]:
        """As `LinearProjections`; ValueError for a single head, or for fewer heads of keys than of queries."""
        if tokens.num_kv_heads < tokens.num_heads:
            raise ValueError(
                f"num_kv_heads={tokens.num_kv_heads}: ConvolutionalProjections has as many as queries have"
            )
        half = tokens.num_heads // 2
        if not half:
            raise ValueError(f"num_heads={tokens.num_heads}: half of the heads are to be convolved")
        dtypes = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        fields = {
            name: getattr(self, name) for name in ("use_bias", "kernel_init", "bias_init", "precision", "dot_general")
        }
        linear = functools.partial(LinearProjections, **fields, **dtypes)
        plain = linear(name="linear")(tokens, tuple(part for part in parts if part not in self.convolved))
        projected: dict[Part, Any] = dict(zip(PARTS, plain, strict=True))
        for part in filter(self.convolved.__contains__, parts):
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


def fused_projection(
    inputs: Features,
    kernel: Float[Array, "c n h d"],
    bias: Float[Array, "n h d"] | None = None,
    *,
    precision: PrecisionLike = None,
    dot_general: Callable | None = None,
) -> Float[Array, "n b t h d"]:
    """x W_i + b_i for each of n projections, [n b t h d]; `dot_general` replaces `jax.lax.dot_general` unless None."""
    product = dot_general or lax.dot_general
    fused = jnp.moveaxis(product(inputs, kernel, (((2,), (0,)), ((), ())), precision=precision), 2, 0)
    return fused if bias is None else fused + bias[:, None, None]
