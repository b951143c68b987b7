"""Trained tables over the displacements of a grid, for Translution and `RelativeContent`."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.nn.initializers import Initializer

from posattn_jax.axes import Array, Shape, Sizes
from posattn_jax.nn.composite import Composite
from posattn_jax.nn.sharding import MATRIX, named
from posattn_jax.nn.tokens import Tokens
from posattn_jax.ops import grid
from posattn_jax.ops.initial import uniform
from posattn_jax.ops.precision import aligned
from posattn_jax.ops.reach import shares
from posattn_jax.ops.translution import ClsMatrices


def kaiming_table(key: Array, shape: Shape, dtype: Any = None, out_sharding: Any = None) -> Array:
    """U(+-1 / sqrt(c h d)) for matrices [... c h d]: Kaiming over the whole table, as in the paper's code."""
    return uniform(1 / math.sqrt(math.prod(shape[-3:])))(key, shape, dtype, out_sharding)


def fan_in_table(key: Array, shape: Shape, dtype: Any = None, out_sharding: Any = None) -> Array:
    """U(+-1 / sqrt(c)) for matrices [... c h d]: each is initialised as a linear map of its own."""
    return uniform(1 / math.sqrt(shape[-3]))(key, shape, dtype, out_sharding)


class OverDisplacements(Composite):
    """A part of attention that has one matrix per displacement of a grid, in the inputs' dtype.

    A subclass has a `param_dtype`.

    Attributes:
      half_span: the largest displacements with a matrix, in positions per dimension, on each side. Keys further away
        are not attended. None: all displacements of the grid. It sets the size of the tables.
    """

    half_span: tuple[int, ...] | None = None

    def limit(self, tokens: Tokens) -> Sizes | None:
        """The half-span within which there are matrices, at most that of the grid that the model is trained on.

        Raises:
          ValueError: points, a decoding step or keys of another sequence, or a half-span that does not fit the grid.
        """
        tokens.check_whole(self)
        far = tuple(size - 1 for size in tokens.reference_shape)
        if self.half_span is None:
            return far
        if len(self.half_span) != len(far) or min(self.half_span) < 0:
            raise ValueError(f"half_span={self.half_span}: expected {len(far)} numbers of at least 0")
        return tuple(min(half, size) for half, size in zip(self.half_span, far, strict=True))

    def _table(self, name: str, init: Initializer, tokens: Tokens, shape: Shape) -> Array:
        """A trained table over displacements, [*R *shape], cut to those that the grid has."""
        half = self.limit(tokens)
        assert half is not None, "a part with a table has a limit"
        table = self.param(name, named(init, *MATRIX), (*(2 * reach + 1 for reach in half), *shape), self.param_dtype)
        near = tuple(min(reach, size - 1) for reach, size in zip(half, tokens.grid_shape, strict=True))
        return grid.centre(table, near).astype(tokens.inputs.dtype)

    def _class_matrices(self, name: str, init: Initializer, tokens: Tokens, shape: Shape) -> ClsMatrices | None:
        """The trained matrices for pairs with a class token; None without class tokens."""
        if not tokens.num_class_tokens:
            return None
        matrices = self.param(name, named(init, *MATRIX), (len(ClsMatrices._fields), *shape), self.param_dtype)
        return ClsMatrices(*(matrix.astype(tokens.inputs.dtype) for matrix in matrices))


# The names of such tables among the parameters, in all parts.
TABLES = ("matrices", "relative", "query_matrices", "key_matrices")


def cut_tables(params: Any, half_span: Shape) -> Any:
    """The parameters of a trained model, cut for the same model with this `half_span`.

    Displacements that a learned span never reaches are dropped, so the outputs stay the same.

    Args:
      params: the parameters of a model or layer, without scanned layers.
      half_span: at most that of its tables. For equal outputs, at least that of every learned span.
    """

    def cut(path, array):
        return grid.centre(array, half_span) if getattr(path[-1], "key", None) in TABLES else array

    return jax.tree_util.tree_map_with_path(cut, params)


def over_reach(function: Callable, tables: Any, tokens: Tokens) -> Array:
    """function(tables), with tables cut to what some query reaches, so that the cost follows the span at run time."""
    p = len(tokens.grid_shape)
    half = np.array([size // 2 for size in jax.tree.leaves(tables)[0].shape[:p]])

    def within(reach):
        cut = functools.partial(grid.centre, half=tuple(reach.tolist()))
        return lambda tables: function(jax.tree.map(cut, tables))

    if tokens.reach is None or not isinstance(tokens.reach, Array):
        reach = half if tokens.reach is None else np.minimum(tokens.reach, half)
        return within(reach)(tables)
    halves, index = shares(jnp.minimum(*aligned(tokens.reach, half)), half.tolist())
    return lax.switch(index, [within(reach) for reach in halves], tables)
