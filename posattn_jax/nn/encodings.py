"""Encodings of relative positions by fixed sinusoids or learned tables. The SIREN is in `nn/siren.py`."""

import dataclasses
import math
from typing import Any, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike

from posattn_jax.axes import Array, Float, RelativeEncoding
from posattn_jax.nn.layers import linear
from posattn_jax.nn.tokens import Tokens
from posattn_jax.ops import grid, reach
from posattn_jax.ops.attention import Factors
from posattn_jax.ops.encodings import Combine, axial_features, join_axes, of_kernel, relative_sinusoids, within_table
from posattn_jax.ops.initial import NORMAL, uniform
from posattn_jax.ops.kernels import Outside, check_kernel


class SinusoidalEncoding(nn.Module, kw_only=True):
    """E = S W + b, where S are fixed sinusoids of every offset (Alfons 2022, Algorithm 3: the baseline, in 1-D).

    Attributes:
      combine: how the features of several dimensions are combined, "concat" or "sum" (our extension; the paper has
        1-D).
      use_bias: whether there is b; Transformer-XL (Dai 2019) has none. The softmax over keys cancels b, unless the
        span's G differs between keys.
      param_dtype: the dtype of W and b.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import SinusoidalEncoding, Tokens
      >>> tokens = Tokens(jnp.ones((1, 3 * 5, 8)), (3, 5), num_heads=2)
      >>> encoding, variables = SinusoidalEncoding().init_with_output(jax.random.key(0), tokens)
      >>> encoding.shape, jax.tree.map(jnp.shape, variables["params"])
      ((5, 9, 2, 4), {'linear': {'bias': (8,), 'kernel': (8, 8)}})
    """

    combine: Combine = "concat"
    use_bias: bool = True
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, tokens: Tokens) -> RelativeEncoding:
        """E [*R, h, d], perhaps 0 at offsets that no query reaches.

        On a grid other than the reference grid, an offset keeps its features.
        """
        width = tokens.num_heads * tokens.head_dim
        grids = tokens.reference_shape, tokens.query_grid_shape
        sinusoids = relative_sinusoids(tokens.table_shape, width, self.combine, *grids)
        fields = {"use_bias": self.use_bias, "param_dtype": self.param_dtype}
        project = linear(width, width, (None, "width"), name="linear", **fields)
        encoding = within_reach(project, sinusoids, tokens)
        return encoding.reshape(*encoding.shape[:-1], tokens.num_heads, tokens.head_dim)

    def factors(self, tokens: Tokens) -> Factors:
        """W [c h d] and `combine`. To be called after E was computed."""
        kernel = nn.unbox(self.variables)["params"]["linear"]["kernel"]
        return Factors(kernel.reshape(-1, tokens.num_heads, tokens.head_dim), self.combine)


class LearnedEncoding(nn.Module, kw_only=True):
    """E is a table of trained vectors, one per offset and head.

    Attributes:
      embedding_init: the initialiser of the table.
      param_dtype: the dtype of the table.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import LearnedEncoding, Tokens
      >>> tokens = Tokens(jnp.ones((1, 3 * 5, 8)), (3, 5), num_heads=2)
      >>> encoding, variables = LearnedEncoding().init_with_output(jax.random.key(0), tokens)
      >>> encoding.shape
      (5, 9, 2, 4)
    """

    embedding_init: Initializer = NORMAL
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, tokens: Tokens) -> RelativeEncoding:
        """E [*R, h, d]: the centre of the table, which has the offsets of the reference grid.

        Raises:
          ValueError: a grid larger than the one the table was created for.
        """
        tokens.check_one_grid(self)
        shape, reference = tokens.table_shape, tokens.reference_shape
        sizes = (*grid.relative_shape(reference), tokens.num_heads, tokens.head_dim)
        table = self.param("table", self.embedding_init, sizes, self.param_dtype)
        return within_table(table, shape, reference)


class AxialEncoding(nn.Module, kw_only=True):
    """E of an offset combines trained vectors, one for its coordinate in each dimension.

      E_o = [T_1[o_1]; ...; T_p[o_p]]    combine = "concat" (Ramachandran 2019, equation 3)
      E_o = T_1[o_1] + ... + T_p[o_p]    combine = "sum" (as Ho 2019 does with vectors of absolute positions)

    Attributes:
      embedding_init: the initialiser of the tables T_i, which are [R_i h d/p], or [R_i h d] for "sum".
      param_dtype: the dtype of the tables.
      combine: see above.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import AxialEncoding, Tokens
      >>> tokens = Tokens(jnp.ones((1, 3 * 5, 8)), (3, 5), num_heads=2)
      >>> encoding, variables = AxialEncoding().init_with_output(jax.random.key(0), tokens)
      >>> encoding.shape  # [*R h d], of tables [5 2 2] and [9 2 2]
      (5, 9, 2, 4)
    """

    embedding_init: Initializer = NORMAL
    param_dtype: DTypeLike = jnp.float32
    combine: Combine = "concat"

    @nn.compact
    def __call__(self, tokens: Tokens) -> RelativeEncoding:
        """E [*R, h, d]: the centres of the tables, which have the offsets of the reference grid.

        Raises:
          ValueError: a grid larger than the one the tables were created for, another `combine`, or a d that the
            number of dimensions does not divide.
        """
        tokens.check_one_grid(self)
        shape, parts = tokens.table_shape, []
        each = axial_features(tokens.head_dim, len(shape), self.combine)
        for axis, (size, limit) in enumerate(zip(shape, tokens.reference_shape, strict=True)):
            line = {"grid_shape": (size,), "table_shape": (size,), "reference_shape": (limit,), "head_dim": each}
            line["is_causal"] = False  # an encoding has every offset
            along = LearnedEncoding(
                embedding_init=self.embedding_init, param_dtype=self.param_dtype, name=f"dimension_{axis + 1}"
            )
            parts.append(along(dataclasses.replace(tokens, **line)))
        return join_axes(parts, shape, self.combine)


class KernelEncoding(nn.Module):
    """E is a table of trained vectors for the offsets of a kernel, for every grid (Shaw 2018; Chang 2021, eq. 5).

    With `Positional` it is a dynamic convolution: the query at a position determines the weights there.

    Attributes:
      kernel_shape: K, an odd number of offsets per dimension.
      outside: what offsets beyond the kernel get: the vector of its edge, "clip", or 0, "drop".
      share_heads: whether all heads have the same vectors.
      embedding_init: the initialiser of the table [*K h|1 d]; None: U(+-1 / sqrt(prod(K))).
      param_dtype: the dtype of the table.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import Content, KernelEncoding, Positional, PositionalSelfAttention
      >>> dynamic = Positional(KernelEncoding((3, 3)))
      >>> layer = PositionalSelfAttention(num_heads=2, terms=(Content(), dynamic))
      >>> inputs = jnp.ones((1, 3 * 4, 8))
      >>> variables = layer.init(jax.random.key(0), inputs, (3, 4))
      >>> outputs, intermediates = layer.apply(variables, inputs, (3, 4), return_intermediates=True)
      >>> intermediates["relative_encoding"].shape, jax.tree.map(jnp.shape, variables["params"]["terms_1"])
      ((5, 7, 2, 4), {'encoding': {'table': (3, 3, 1, 4)}})
    """

    kernel_shape: tuple[int, ...]
    outside: Outside = "clip"
    share_heads: bool = True
    embedding_init: Initializer | None = None
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, tokens: Tokens) -> RelativeEncoding:
        """E [*R, h, d]; ValueError if the kernel does not fit the number of dimensions."""
        tokens.check_one_grid(self)
        check_kernel(self.kernel_shape, tokens.table_shape)
        init = self.embedding_init or uniform(1 / math.sqrt(math.prod(self.kernel_shape)))
        heads = 1 if self.share_heads else tokens.num_heads
        table = self.param("table", init, (*self.kernel_shape, heads, tokens.head_dim), self.param_dtype)
        return of_kernel(table, tokens.table_shape, self.outside, tokens.num_heads)


class _Applied(NamedTuple):
    """A module as a function of its variables. Those of modules with equal fields are equal."""

    module: nn.Module

    def __call__(self, variables: Any, x: Array) -> Any:
        return self.module.apply(variables, x)


def within_reach(module: nn.Module, features: Float[Array, "*r k"], tokens: Tokens) -> Float[Array, "*r c"]:
    """As `ops.reach.within_reach`: [*R, k] -> [*R, c]. During initialisation the module is evaluated at all offsets."""
    if module.scope is None or module.is_initializing():
        return module(features)
    applied = _Applied(module.clone(parent=None, name=None))
    return reach.within_reach(applied, module.variables, features, tokens.table_shape, tokens.reach)
