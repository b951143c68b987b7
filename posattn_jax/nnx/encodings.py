"""Encodings of relative positions by fixed sinusoids or learned tables. The SIREN is in `nnx/siren.py`."""

import math

import jax.numpy as jnp
from flax import nnx
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike

from posattn_jax.axes import RelativeEncoding, Shape
from posattn_jax.nn.tokens import Tokens
from posattn_jax.ops import grid
from posattn_jax.ops.attention import Factors
from posattn_jax.ops.encodings import Combine, axial_features, join_axes, of_kernel, relative_sinusoids, within_table
from posattn_jax.ops.initial import NORMAL, uniform
from posattn_jax.ops.kernels import Outside, check_kernel
from posattn_jax.ops.reach import within_reach


class SinusoidalEncoding(nnx.Module):
    """E = S W + b, where S are fixed sinusoids of every offset (Alfons 2022, Algorithm 3).

    Args:
      num_heads: h of the layer.
      head_dim: d of the layer.
      combine: how the features of several dimensions are combined, "concat" or "sum".
      use_bias: whether there is b.
      param_dtype: the dtype of W and b.
      rngs: the rngs, of which "params" is used.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from posattn_jax import Tokens
      >>> from posattn_jax.nnx import SinusoidalEncoding
      >>> encoding = SinusoidalEncoding(num_heads=2, head_dim=4, rngs=nnx.Rngs(0))
      >>> encoding(Tokens(jnp.ones((1, 3 * 5, 8)), (3, 5), num_heads=2)).shape
      (5, 9, 2, 4)
    """

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        *,
        combine: Combine = "concat",
        use_bias: bool = True,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ):
        self.num_heads, self.head_dim, self.combine = num_heads, head_dim, combine
        width = num_heads * head_dim
        init = uniform(1 / math.sqrt(width))
        fields = {"use_bias": use_bias, "kernel_init": init, "bias_init": init, "param_dtype": param_dtype}
        self.linear = nnx.Linear(width, width, **fields, rngs=rngs)

    def __call__(self, tokens: Tokens) -> RelativeEncoding:
        """E [*R, h, d], perhaps 0 at offsets that no query reaches."""
        tokens.check_fits(self, num_heads=self.num_heads, head_dim=self.head_dim)
        width = self.num_heads * self.head_dim
        sinusoids = relative_sinusoids(tokens.table_shape, width, self.combine, tokens.reference_shape)
        encoding = within_reach(self.linear, sinusoids, tokens.table_shape, tokens.reach)
        return encoding.reshape(*encoding.shape[:-1], self.num_heads, self.head_dim)

    def factors(self, tokens: Tokens) -> Factors:
        """W [c h d] and `combine`."""
        return Factors(self.linear.kernel[...].reshape(-1, self.num_heads, self.head_dim), self.combine)


class LearnedEncoding(nnx.Module):
    """E is a table of trained vectors, one per offset and head.

    Args:
      grid_shape: S, the largest grid that the table covers.
      num_heads: h of the layer.
      head_dim: d of the layer.
      embedding_init: the initialiser of the table [*R h d], R = 2 S - 1.
      param_dtype: the dtype of the table.
      rngs: the rngs, of which "params" is used.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from posattn_jax import Tokens
      >>> from posattn_jax.nnx import LearnedEncoding
      >>> encoding = LearnedEncoding((3, 5), num_heads=2, head_dim=4, rngs=nnx.Rngs(0))
      >>> encoding(Tokens(jnp.ones((1, 3 * 4, 8)), (3, 4), num_heads=2)).shape  # the centre of the table
      (5, 7, 2, 4)
    """

    def __init__(
        self,
        grid_shape: Shape,
        num_heads: int,
        head_dim: int,
        *,
        embedding_init: Initializer = NORMAL,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ):
        self.grid_shape = grid.check_grid(grid_shape)
        self.num_heads, self.head_dim = num_heads, head_dim
        shape = (*grid.relative_shape(self.grid_shape), num_heads, head_dim)
        self.table = nnx.Param(embedding_init(rngs.params(), shape, param_dtype))

    def __call__(self, tokens: Tokens) -> RelativeEncoding:
        """E [*R, h, d]; ValueError for a grid larger than the one the table was created for."""
        num_dims = len(self.grid_shape)
        tokens.check_fits(self, num_dims=num_dims, num_heads=self.num_heads, head_dim=self.head_dim)
        return within_table(self.table[...], tokens.table_shape, self.grid_shape)


class AxialEncoding(nnx.Module):
    """E of an offset combines trained vectors, one for its coordinate in each dimension.

      E_o = [T_1[o_1]; ...; T_p[o_p]]    combine = "concat" (Ramachandran 2019, equation 3)
      E_o = T_1[o_1] + ... + T_p[o_p]    combine = "sum"

    Args:
      grid_shape: S, the largest grid that the tables cover.
      num_heads: h of the layer.
      head_dim: d of the layer.
      embedding_init: the initialiser of the tables T_i, which are [R_i h d/p], or [R_i h d] for "sum".
      param_dtype: the dtype of the tables.
      combine: see above.
      rngs: the rngs, of which "params" is used.

    Raises:
      ValueError: a d that the number of dimensions does not divide, or another `combine`.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from posattn_jax import Tokens
      >>> from posattn_jax.nnx import AxialEncoding
      >>> encoding = AxialEncoding((3, 5), num_heads=2, head_dim=4, rngs=nnx.Rngs(0))
      >>> encoding(Tokens(jnp.ones((1, 3 * 5, 8)), (3, 5), num_heads=2)).shape  # of tables [5 2 2] and [9 2 2]
      (5, 9, 2, 4)
    """

    def __init__(
        self,
        grid_shape: Shape,
        num_heads: int,
        head_dim: int,
        *,
        embedding_init: Initializer = NORMAL,
        param_dtype: DTypeLike = jnp.float32,
        combine: Combine = "concat",
        rngs: nnx.Rngs,
    ):
        self.grid_shape, self.combine = grid.check_grid(grid_shape), combine
        self.num_heads, self.head_dim = num_heads, head_dim
        each = axial_features(head_dim, len(self.grid_shape), combine)
        for axis, size in enumerate(self.grid_shape, 1):
            fields = {"embedding_init": embedding_init, "param_dtype": param_dtype}
            setattr(self, f"dimension_{axis}", LearnedEncoding((size,), num_heads, each, **fields, rngs=rngs))

    def __call__(self, tokens: Tokens) -> RelativeEncoding:
        """E [*R, h, d]; ValueError for a grid larger than the one the tables were created for."""
        shape, p = tokens.table_shape, len(self.grid_shape)
        tokens.check_fits(self, num_dims=p, num_heads=self.num_heads, head_dim=self.head_dim)
        tables = [getattr(self, f"dimension_{axis}").table[...] for axis in range(1, p + 1)]
        lines = zip(tables, shape, self.grid_shape, strict=True)
        return join_axes([within_table(table, (size,), (limit,)) for table, size, limit in lines], shape, self.combine)


class KernelEncoding(nnx.Module):
    """E is a table of trained vectors for the offsets of a kernel, for every grid (Shaw 2018; Chang 2021, eq. 5).

    Args:
      kernel_shape: K, an odd number of offsets per dimension.
      num_heads: h of the layer.
      head_dim: d of the layer.
      outside: what offsets beyond the kernel get: the vector of its edge, "clip", or 0, "drop".
      share_heads: whether all heads have the same vectors.
      embedding_init: the initialiser of the table [*K h|1 d]; None: U(+-1 / sqrt(prod(K))).
      param_dtype: the dtype of the table.
      rngs: the rngs, of which "params" is used.

    Raises:
      ValueError: sizes that are not odd.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from posattn_jax import Tokens
      >>> from posattn_jax.nnx import KernelEncoding
      >>> encoding = KernelEncoding((3, 3), num_heads=2, head_dim=4, rngs=nnx.Rngs(0))
      >>> encoding(Tokens(jnp.ones((1, 3 * 5, 8)), (3, 5), num_heads=2)).shape
      (5, 9, 2, 4)
    """

    def __init__(
        self,
        kernel_shape: Shape,
        num_heads: int,
        head_dim: int,
        *,
        outside: Outside = "clip",
        share_heads: bool = True,
        embedding_init: Initializer | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ):
        self.kernel_shape = check_kernel(kernel_shape, kernel_shape)
        self.num_heads, self.head_dim, self.outside = num_heads, head_dim, outside
        init = embedding_init or uniform(1 / math.sqrt(math.prod(self.kernel_shape)))
        shape = (*self.kernel_shape, 1 if share_heads else num_heads, head_dim)
        self.table = nnx.Param(init(rngs.params(), shape, param_dtype))

    def __call__(self, tokens: Tokens) -> RelativeEncoding:
        """E [*R, h, d]; ValueError if the kernel does not fit the number of dimensions."""
        check_kernel(self.kernel_shape, tokens.table_shape)
        tokens.check_fits(self, num_heads=self.num_heads, head_dim=self.head_dim)
        return of_kernel(self.table[...], tokens.table_shape, self.outside, self.num_heads)
