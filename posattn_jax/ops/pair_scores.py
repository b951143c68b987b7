"""Scores where the query, the key or both go through a matrix of the relative offset, as the values of Translution."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from posattn_jax.axes import Array, Features, Float, Key, Query, Shape, Weights
from posattn_jax.ops import grid
from posattn_jax.ops.each_query import GridWindows, map_queries
from posattn_jax.ops.scores import product_sum
from posattn_jax.ops.translution import ClsMatrices, table_half


def pair_scores(
    inputs: Features,
    *,
    grid_shape: Shape,
    key_inputs: Features | None = None,
    query: Query | None = None,
    key: Key | None = None,
    query_matrices: Float[Array, "*r c h d"] | None = None,
    key_matrices: Float[Array, "*r c h d"] | None = None,
    query_cls: ClsMatrices | None = None,
    key_cls: ClsMatrices | None = None,
) -> Weights:
    """A_ts = (x_t W^q_{s-t}) . (x_s W^k_{s-t}), where one side may instead be a plain query q_t or key k_s.

    This is the form of Fan's later code, where queries and keys are relative too. Offsets are key minus query. Like
    `translution`, it goes query by query, in the backward pass too: there is no tensor [b N N d] or [N N c d].

    Args:
      inputs: x [b t c]: class tokens, if there are any, then the positions of the grid in row-major order.
      grid_shape: S, one to three sizes.
      key_inputs: x of the keys, [b s c], if it differs from that of the queries.
      query: q [b t h d]; or `query_matrices`: W^q [*R c h d], R_i = 2 half_i + 1 offsets, centred, at most 2 S_i - 1.
      key: k [b s h d]; or `key_matrices`: W^k, as W^q. If both are given, they have the same shape.
      query_cls, key_cls: with class tokens, the matrices of pairs with a class token, for each side with matrices.

    Returns:
      A [b h t s] in float32 or better; 0 for pairs that are further apart than the matrices reach.

    Raises:
      ValueError: sides that are missing, given twice, or do not fit together.
    """
    shape = grid.check_grid(grid_shape)
    of_keys = inputs if key_inputs is None else key_inputs
    if of_keys.shape != inputs.shape:
        raise ValueError(f"key_inputs has shape {of_keys.shape}: expected {inputs.shape}, as inputs")
    tables = [table for table in (query_matrices, key_matrices) if table is not None]
    half = _check(inputs, shape, (query, query_matrices, query_cls), (key, key_matrices, key_cls), tables)
    windows = GridWindows(shape, half)
    cls = inputs.shape[1] - windows.num_positions

    def patches(x, window, by_key):
        x = x[:, cls:]
        return window, x.reshape(x.shape[0], *shape, *x.shape[2:]) if by_key else x

    arrays = [
        patches(inputs if query is None else query, windows.by_query(), False),
        patches(of_keys if key is None else key, windows.by_key(), True),
        *((windows.by_offset(), windows.padded(table)) for table in tables),
    ]

    def one_query(of_query, of_key, *tables):
        """A of one query: [b h s]."""
        tables = list(tables)
        of_query = of_query[:, 0] if query is not None else product_sum("bc,schd->sbhd", of_query[:, 0], tables.pop(0))
        of_key = jnp.moveaxis(of_key, 1, 0) if key is not None else product_sum("bsc,schd->sbhd", of_key, tables.pop(0))
        return product_sum("bhd,sbhd->bhs" if query is not None else "sbhd,sbhd->bhs", of_query, of_key)

    scores = jnp.moveaxis(map_queries(one_query, *zip(*arrays, strict=True)), 0, 2)  # [b h t w]
    keys = windows.keys()
    full = jnp.zeros((*scores.shape[:3], windows.num_positions), scores.dtype)
    full = full.at[:, :, jnp.arange(len(keys))[:, None], keys].set(scores)
    if not cls:
        return full

    def side(x: Features, given: Array | None, matrices: Any, tokens: slice, pair: int) -> Array:
        return product_sum("bsc,chd->bshd", x[:, tokens], matrices[pair]) if given is None else given[:, tokens]

    def block(queries: slice, keys: slice, pair: int) -> Weights:
        of_query = side(inputs, query, query_cls, queries, pair)
        return product_sum("bthd,bshd->bhts", of_query, side(of_keys, key, key_cls, keys, pair))

    first, rest = slice(None, cls), slice(cls, None)
    of_cls = jnp.concatenate([block(first, first, 0), block(first, rest, 1)], -1)
    return jnp.concatenate([of_cls, jnp.concatenate([block(rest, first, 2), full], -1)], -2)


def _check(inputs: Features, shape: tuple[int, ...], query: tuple, key: tuple, tables: Sequence[Array]):
    """Returns the half-span of the tables; ValueError if a side does not fit."""
    b, n, c = inputs.shape
    for name, (given, matrices, cls) in (("query", query), ("key", key)):
        if (given is None) == (matrices is None):
            raise ValueError(f"expected either {name} or {name}_matrices")
        if given is not None and given.shape[:2] != (b, n):
            raise ValueError(f"{name} has shape {given.shape}: expected it to begin with {(b, n)}, as inputs")
        has_cls = n > grid.num_positions(shape)
        if matrices is not None and has_cls != (cls is not None):
            raise ValueError(f"{name}_cls: expected it with class tokens, and only then")
    if not tables:
        raise ValueError("query, key: expected matrices for at least one of them (query_matrices, key_matrices)")
    if n < grid.num_positions(shape):
        raise ValueError(f"inputs has {n} tokens: expected at least {grid.num_positions(shape)} for grid_shape={shape}")
    first, *others = tables
    for table in others:
        if table.shape != first.shape:
            raise ValueError(f"matrices have shape {table.shape}: expected the same odd sizes, {first.shape}")
    half = table_half("matrices", first, 3, shape)
    if first.shape[-3] != c:
        raise ValueError(f"matrices have shape {first.shape}: expected it to end with ({c}, h, d)")
    return half
