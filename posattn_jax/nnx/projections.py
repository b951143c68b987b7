"""From features to queries, keys and values."""

from collections.abc import Callable

import jax.numpy as jnp
from flax import nnx
from jax.lax import PrecisionLike
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike

from posattn_jax.axes import Query, SharedKey
from posattn_jax.nn.parts import PARTS, Part
from posattn_jax.nn.tokens import Tokens
from posattn_jax.ops.initial import fused_xavier
from posattn_jax.ops.projections import fused_projection


class LinearProjections(nnx.Module):
    """One fused linear map c -> (3, h, d), Xavier-uniform over its whole fan c + 3 h d.

    With fewer heads of keys and values than of queries, the query has its own map.

    Args:
      in_features: c, the width of the inputs.
      num_heads: h of the layer.
      head_dim: d of the layer.
      num_kv_heads: k, the heads of keys and values; None: h.
      parts: which of "query", "key" and "value" are computed; the others are None.
      use_bias: whether there are biases.
      kernel_init: the initialiser of the fused kernel [c, 3, h, d].
      bias_init: the initialiser of the fused bias [3, h, d].
      precision: the precision of the product, as in `jax.lax.Precision`; None: JAX's default.
      dot_general: the function that computes the product, such as a quantised one; None: `jax.lax.dot_general`.
      dtype: the dtype of the computation; None follows the inputs.
      param_dtype: the dtype of the parameters.
      rngs: the rngs, of which "params" is used.

    Example:
      >>> import jax
      >>> from flax import nnx
      >>> from posattn_jax.nnx import LinearProjections
      >>> projections = LinearProjections(8, num_heads=2, head_dim=4, use_bias=False, rngs=nnx.Rngs(0))
      >>> projections.kernel.shape
      (8, 3, 2, 4)
    """

    def __init__(
        self,
        in_features: int,
        num_heads: int,
        head_dim: int,
        *,
        num_kv_heads: int | None = None,
        parts: tuple[Part, ...] = PARTS,
        use_bias: bool = True,
        kernel_init: Initializer = fused_xavier,
        bias_init: Initializer = nnx.initializers.zeros,
        precision: PrecisionLike = None,
        dot_general: Callable | None = None,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ):
        self.dtype, self.use_bias = dtype, use_bias
        self.precision, self.dot_general = precision, dot_general
        kv_heads = num_kv_heads or num_heads
        if kv_heads == num_heads:
            fused = (("", parts, num_heads),)
        else:
            others = tuple(part for part in parts if part != "query")
            queries = tuple(part for part in parts if part == "query")
            fused = (("query_", queries, num_heads), ("key_value_", others, kv_heads))
        self.fused = tuple((prefix, some) for prefix, some, _ in fused if some)
        for prefix, some, heads in fused:
            shape = (len(some), heads, head_dim)
            if some:
                setattr(
                    self, f"{prefix}kernel", nnx.Param(kernel_init(rngs.params(), (in_features, *shape), param_dtype))
                )
            if some and use_bias:
                setattr(self, f"{prefix}bias", nnx.Param(bias_init(rngs.params(), shape, param_dtype)))

    def __call__(
        self, tokens: Tokens, parts: tuple[Part, ...] = PARTS
    ) -> tuple[Query | None, SharedKey | None, SharedKey | None]:
        """Query, key and value; None for those that the module does not have, or that are not in `parts`."""
        projected = {}
        for prefix, some in self.fused:
            kernel = getattr(self, f"{prefix}kernel")[...]
            bias = getattr(self, f"{prefix}bias")[...] if self.use_bias else None
            arrays = nnx.nn.dtypes.promote_dtype((tokens.inputs, kernel, bias), dtype=self.dtype)
            product = fused_projection(*arrays, precision=self.precision, dot_general=self.dot_general)
            projected |= {part: x for part, x in zip(some, product, strict=True) if part in parts}
        return projected.get("query"), projected.get("key"), projected.get("value")
