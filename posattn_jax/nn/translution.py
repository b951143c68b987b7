"""Translution: values with one matrix per displacement, for the `values` slot of attention (Fan 2025)."""

import math
from collections.abc import Mapping
from typing import ClassVar

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike

from posattn_jax.axes import Query, Sizes, Value, Weights
from posattn_jax.nn.attending import Attention
from posattn_jax.nn.checks import check_sizes
from posattn_jax.nn.displacements import OverDisplacements, fan_in_table, kaiming_table, over_reach
from posattn_jax.nn.parts import Part
from posattn_jax.nn.sharding import MATRIX, named
from posattn_jax.nn.siren import Siren
from posattn_jax.nn.tokens import Tokens
from posattn_jax.ops import grid
from posattn_jax.ops.initial import uniform
from posattn_jax.ops.translution import basis_translution, low_rank_translution, translution


class PairValues(OverDisplacements):
    """Values V_ts that differ from pair to pair. A subclass computes them from the inputs and averages them."""

    needs: ClassVar[tuple[Part, ...]] = ()

    def __call__(self, attention: Attention, value: Value | None, tokens: Tokens) -> Query:
        """sum_s alpha_ts V_ts, [b t h d]."""
        weights = attention.weights(self.limit(tokens))
        return self.average(weights.astype(tokens.inputs.dtype), tokens)

    def average(self, weights: Weights, tokens: Tokens) -> Query:
        """sum_s alpha_ts V_ts, [b t h d], from the weights alpha."""
        raise NotImplementedError


class Translution(PairValues):
    """outputs_t = sum_s alpha_ts x_s W_{s-t} (Fan 2025, equation 5; see `ops.translution`).

    Attributes:
      half_span: see `OverDisplacements`.
      share_heads: whether all heads share matrices [c d]; otherwise each head has its own, which are one matrix
        [c, h d].
      kernel_init: the initialiser of the table [*R c h d] and of the three matrices for class tokens.
      param_dtype: the dtype of both.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import PositionalSelfAttention, Translution
      >>> layer = PositionalSelfAttention(num_heads=1, values=Translution(half_span=(1, 1)))
      >>> outputs, variables = layer.init_with_output(jax.random.key(0), jnp.ones((1, 3 * 3, 4)), (3, 3))
      >>> jax.tree.map(jnp.shape, variables["params"]["values"])
      {'matrices': (3, 3, 4, 1, 4)}
    """

    replaces: ClassVar[Mapping[str, Part]] = {"matrices": "value", "class_matrices": "value"}

    share_heads: bool = False
    kernel_init: Initializer = kaiming_table
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def average(self, weights: Weights, tokens: Tokens) -> Query:
        heads = 1 if self.share_heads else tokens.num_heads
        shape = (tokens.inputs.shape[-1], heads, tokens.head_dim)
        table = self._table("matrices", self.kernel_init, tokens, shape)
        cls = self._class_matrices("class_matrices", self.kernel_init, tokens, shape)

        def value(table):
            return translution(weights, tokens.inputs, table, grid_shape=tokens.grid_shape, cls_matrices=cls)

        return over_reach(value, table, tokens)


class LowRankTranslution(PairValues):
    """A shared matrix plus a relative part of low rank.

      outputs_t = sum_s alpha_ts x_s W + (sum_s alpha_ts x_s D U_{s-t}) V

    Without D, the rank should be less than d: otherwise it has more parameters than `Translution`.

    Attributes:
      half_span: see `OverDisplacements`. It holds for the shared part, too.
      rank: k, where V is [h k d].
      down_dim: j, where D is [c j]; None: no D, and j = c.
      mix_heads: whether V [h k, h d] maps the sums of all heads at once, and outputs are the mean of the two parts
        instead of their sum: the authors' code (LoR-Translution), with down_dim = h k.
      kernel_init: the initialiser of the table U [*R j h k] and of the three matrices for class tokens.
      param_dtype: the dtype of the parameters.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import LowRankTranslution, PositionalSelfAttention
      >>> layer = PositionalSelfAttention(num_heads=1, values=LowRankTranslution(rank=2))
      >>> outputs, variables = layer.init_with_output(jax.random.key(0), jnp.ones((1, 3 * 3, 4)), (3, 3))
      >>> jax.tree.map(jnp.shape, variables["params"]["values"])
      {'matrix': (4, 1, 4), 'relative': (5, 5, 4, 1, 2), 'up': (1, 2, 4)}
    """

    replaces: ClassVar[Mapping[str, Part]] = {"matrix": "value"}

    rank: int = 8
    down_dim: int | None = None
    mix_heads: bool = False
    kernel_init: Initializer = kaiming_table
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def average(self, weights: Weights, tokens: Tokens) -> Query:
        check_sizes(self, "rank", "down_dim")
        c, h, d = tokens.inputs.shape[-1], tokens.num_heads, tokens.head_dim
        shape = (c if self.down_dim is None else self.down_dim, h, self.rank)

        def parameter(name, init, names, *shape):
            return self.param(name, named(init, *names), shape, self.param_dtype).astype(tokens.inputs.dtype)

        matrix = parameter("matrix", fan_in_table, MATRIX, c, h, d)
        if self.mix_heads:
            init = uniform(1 / math.sqrt(h * self.rank))
            up = parameter("joint_up", init, ("heads", None, None, None), h, self.rank, h, d)
        else:
            up = parameter("up", uniform(1 / math.sqrt(self.rank)), ("heads", None, None), h, self.rank, d)
        down = None
        if self.down_dim is not None:
            down = parameter("down", uniform(1 / math.sqrt(c)), ("width", None), c, self.down_dim)
        table = self._table("relative", self.kernel_init, tokens, shape)
        fields = {"down": down, "grid_shape": tokens.grid_shape}
        fields["cls_matrices"] = self._class_matrices("class_matrices", self.kernel_init, tokens, shape)

        def value(table):
            return low_rank_translution(weights, tokens.inputs, matrix, table, up, **fields)

        outputs = over_reach(value, table, tokens)
        return outputs / 2 if self.mix_heads else outputs


class GeneralTranslution(PairValues):
    """outputs_t = sum_s alpha_ts x_s W(p_s - p_t), W(x) = sum_k h_k(x) W_k, where h is a SIREN of the displacement.

    It works for any positions and any grid: the number of parameters does not depend on them (Fan 2025, equation 6,
    with f linear in x). Positions on a grid are i / (S - 1); points keep the positions that are given.

    Attributes:
      half_span: see `OverDisplacements`; not for points.
      num_bases: K, the number of matrices W_k.
      basis: the network h, with K outputs; None: `Siren(K, hidden_features=32)`.
      kernel_init: the initialiser of the W_k [K c h d]; None: U(+-1 / sqrt(K c)).
      param_dtype: the dtype of the W_k.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import GeneralTranslution, PositionalSelfAttention
      >>> layer = PositionalSelfAttention(num_heads=1, values=GeneralTranslution(num_bases=3))
      >>> points, places = jnp.ones((1, 5, 8)), jax.random.uniform(jax.random.key(1), (1, 5, 3))
      >>> outputs, variables = layer.init_with_output(jax.random.key(0), points, (5,), positions=places)
      >>> outputs.shape
      (1, 5, 8)
    """

    num_bases: int = 8
    basis: nn.Module | None = None
    kernel_init: Initializer | None = None
    param_dtype: DTypeLike = jnp.float32

    def limit(self, tokens: Tokens) -> Sizes | None:
        """As `OverDisplacements.limit` if there is a half-span, otherwise None."""
        return None if self.half_span is None else super().limit(tokens)

    @nn.compact
    def average(self, weights: Weights, tokens: Tokens) -> Query:
        check_sizes(self, "num_bases")
        c, h, d = tokens.inputs.shape[-1], tokens.num_heads, tokens.head_dim
        init = self.kernel_init or uniform(1 / math.sqrt(self.num_bases * c))
        matrices = self.param("bases", named(init, *MATRIX), (self.num_bases, c, h, d), self.param_dtype)
        matrices = matrices.astype(tokens.inputs.dtype)
        cls = self._class_matrices("class_matrices", fan_in_table, tokens, (c, h, d))
        basis = Siren(self.num_bases, hidden_features=32, name="siren") if self.basis is None else self.basis
        if tokens.positions is not None:
            coefficients = basis(tokens.positions[:, None] - tokens.positions[:, :, None]).astype(matrices.dtype)
            return basis_translution(weights, tokens.inputs, matrices, coefficients, cls_matrices=cls)
        table = basis(grid.relative_coordinates(tokens.grid_shape, tokens.reference_shape))
        if (half := self.limit(tokens)) is not None:
            table = grid.centre(table, np.minimum(half, np.subtract(tokens.grid_shape, 1)).tolist())

        def value(table):
            fields = {"grid_shape": tokens.grid_shape, "cls_matrices": cls}
            return basis_translution(weights, tokens.inputs, matrices, table, **fields)

        return over_reach(value, table.astype(matrices.dtype), tokens)
