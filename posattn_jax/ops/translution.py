"""Translution: attention whose values go through a matrix that depends on the relative offset.

Fan 2025, equations 5 and 6. The weights alpha are given:

  outputs_t = sum_s alpha_ts x_s W_{s-t}                                       `translution`
  W_{s-t} = W + D U_{s-t} V                    only W has full rank            `low_rank_translution`
  W_{s-t} = sum_k h_k(s - t) W_k               few matrices, any positions     `basis_translution`

Tables are indexed by key minus query, as everywhere in this package and in the paper's equation 1, a convolution. The
paper's equation 5 has query minus key: its table is this one, reversed along every dimension of offsets.

Heads: a matrix for all heads, [c, h d], consists of the heads' own matrices [c d] side by side, [c h d]. Every head
reads all of x_s, and writes its own d features. So a matrix for all heads and one matrix per head are the same thing.
[c 1 d] is a matrix that heads share: their outputs then differ only because their weights do.

CLS tokens stand before the positions of the grid. They have no offset, but three matrices of their own: `ClsMatrices`.

A table may have fewer than the 2 S - 1 offsets of the grid. With 2 half + 1 offsets, keys further away than half in any
dimension contribute nothing, whatever their weights. Causality comes from zeros in the weights.

There is no tensor of size [b N N d] or [N N c d]: see `map_queries`.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax.numpy as jnp

from posattn_jax.axes import Array, Features, Float, Query, Shape, Sizes, Weights
from posattn_jax.ops import grid
from posattn_jax.ops.each_query import GridWindows, Window, map_queries
from posattn_jax.ops.precision import float32_or_better
from posattn_jax.ops.scores import product_sum

Matrix = Float[Array, "c #h d"]


class ClsMatrices(NamedTuple):
    """The matrices of pairs with a CLS token, [c h d] or [c 1 d]."""

    cls_query_cls_key: Array
    cls_query_patch_key: Array
    patch_query_cls_key: Array


def translution(
    weights: Weights,
    inputs: Features,
    matrices: Float[Array, "*r c #h d"],
    *,
    grid_shape: Shape,
    cls_matrices: ClsMatrices | None = None,
) -> Query:
    """outputs_t = sum_s alpha_ts x_s W_{s-t} (Fan 2025, equation 5).

    Forward and backward need memory for b h N^2 + b N c + b N h d + |R| c h d numbers. The values take
    b N prod(min(R, S)) c h d multiplications. The loop goes query by query, with a product of [b c] and [c h d] for
    each key. A loop over offsets would find no key for half of the pairs in each dimension. On a CPU the loop over
    queries is 1.4 to 3.9 times faster at batches of 8 to 128, and 2 to 4 times slower at a batch of 1 (4x4 to 16x16,
    width 64, forward and backward).

    Args:
      weights: alpha [b h t s], of all tokens.
      inputs: x [b s c]: CLS tokens, if there are any, then the positions of the grid in row-major order.
      matrices: W [*R c h d], or [*R c 1 d] for all heads; R_i = 2 half_i + 1 offsets, centred, at most 2 S_i - 1.
      grid_shape: S, one to three sizes.
      cls_matrices: the matrices of pairs with a CLS token.

    Returns:
      The outputs [b t h d] in the dtype of `inputs`.

    Raises:
      ValueError: arguments that do not fit together, named in the message.
    """
    shape = grid.check_grid(grid_shape)
    windows = GridWindows(shape, table_half("matrices", matrices, 3, shape))
    _check("matrices", matrices, weights, inputs, shape, cls_matrices)
    by_offset = [(windows.by_offset(), windows.padded(matrices))]
    return _all_tokens(_one_query, weights, inputs, windows, by_offset, cls_matrices)


def low_rank_translution(
    weights: Weights,
    inputs: Features,
    matrix: Matrix,
    relative: Float[Array, "*r j #h k"],
    up: Float[Array, "#h k d"] | Float[Array, "h k h d"],
    *,
    grid_shape: Shape,
    down: Float[Array, "c j"] | None = None,
    cls_matrices: ClsMatrices | None = None,
) -> Query:
    """`translution` with W_{s-t} = W + D U_{s-t} V: shared values, and relative ones of rank k.

    The sum over s of alpha_ts x_s D U_{s-t} comes first, and is multiplied by V once. The table has |R| j h k numbers
    instead of |R| c h d, which makes large grids affordable; without D, j = c. Source: LoR-Translution, the later form
    of Fan's paper (arXiv:2510.10060). If each head has its own V, each head averages its own values. The V of the
    authors' code mixes the sums of all heads.

    Args:
      weights, inputs, grid_shape: as for `translution`.
      matrix: W [c h d] or [c 1 d].
      relative: U [*R j h k] or [*R j 1 k].
      up: V [h k d] or [1 k d]; or one that mixes all heads, [h k h d].
      down: D [c j].
      cls_matrices: U of pairs with a CLS token.

    Returns:
      The outputs [b t h d] in the dtype of `inputs`.

    Raises:
      ValueError: arguments that do not fit together, named in the message.
    """
    h, k, d = weights.shape[1], relative.shape[-1], matrix.shape[-1]
    _check_matrix("matrix", matrix, weights, inputs, d)
    if down is not None and len(down) != inputs.shape[-1]:
        raise ValueError(f"down has shape {down.shape}: expected ({inputs.shape[-1]}, j)")
    if up.shape not in ((h, k, d), (1, k, d), (h, k, h, d)):
        raise ValueError(f"up has shape {up.shape}: expected ({h} or 1, {k}, {d}) or {(h, k, h, d)}")
    reduced = inputs if down is None else product_sum("bsc,cj->bsj", inputs, down).astype(inputs.dtype)
    summed = translution(weights, reduced, relative, grid_shape=grid_shape, cls_matrices=cls_matrices)
    up = up.astype(float32_or_better(up.dtype))  # CPUs have no batched product of bfloat16 in float32
    relative_part = product_sum("bthk,hkd->bthd" if up.ndim == 3 else "bthk,hkgd->btgd", summed, up)
    return (_shared(weights, inputs, matrix) + relative_part).astype(inputs.dtype)


def basis_translution(
    weights: Weights,
    inputs: Features,
    basis: Float[Array, "k c #h d"],
    coefficients: Float[Array, "*r k"],
    *,
    grid_shape: Shape | None = None,
    cls_matrices: ClsMatrices | None = None,
) -> Query:
    """`translution` with W_{s-t} = sum_k h_k(s - t) W_k (Fan 2025, equation 6, with f linear in x).

      outputs_t = sum_k (sum_s alpha_ts h_k(s - t) x_s) W_k

    On a grid h is a table. Elsewhere, such as between the points of a cloud, h is given for every pair.

    Args:
      weights, inputs: as for `translution`.
      basis: W_k [k c h d], or [k c 1 d] for all heads.
      coefficients: h [*R k] with R as for `translution`; without `grid_shape` [b t s k] or [1 t s k], for all tokens
        except CLS tokens.
      grid_shape: S.
      cls_matrices: the matrices of pairs with a CLS token.

    Returns:
      The outputs [b t h d] in the dtype of `inputs`.

    Raises:
      ValueError: arguments that do not fit together, named in the message.
    """
    if grid_shape is not None:
        shape = grid.check_grid(grid_shape)
        windows = GridWindows(shape, table_half("coefficients", coefficients, 1, shape))
        h_k = windows.by_offset(), windows.padded(coefficients)
    else:
        n = coefficients.shape[1] if coefficients.ndim == 4 else 0
        if coefficients.shape[1:] != (n, n, len(basis)) or coefficients.shape[0] not in (1, inputs.shape[0]):
            expected = f"({inputs.shape[0]} or 1, t, t, {len(basis)}) without grid_shape"
            raise ValueError(f"coefficients has shape {coefficients.shape}: expected {expected}")
        shape = (n,)
        windows = GridWindows(shape, (n - 1,))
        h_k = windows.by_pair(1), coefficients
    if coefficients.shape[-1] != len(basis):
        raise ValueError(f"coefficients has {coefficients.shape[-1]} features: expected {len(basis)}, as basis has")
    _check("basis", basis, weights, inputs, shape, cls_matrices)
    others = [h_k, (windows.whole(len(basis)), basis)]
    return _all_tokens(_one_query_of_basis, weights, inputs, windows, others, cls_matrices)


def _one_query(weights, inputs, matrices):
    """One query's outputs, [b h d], from weights [b h s], inputs [b s c], matrices [s c h d]."""
    return product_sum("bhs,sbhd->bhd", weights, product_sum("bsc,schd->sbhd", inputs, matrices))


def _one_query_of_basis(weights, inputs, coefficients, basis):
    """The same from coefficients [s k] or [b s k], basis [k c h d]."""
    coefficients = coefficients if coefficients.ndim == 3 else coefficients[None]
    # Even the product is an einsum, because the sums in its gradients are then fast.
    return product_sum(
        "bhkc,kchd->bhd",
        product_sum("bhks,bsc->bhkc", product_sum("bhs,bsk->bhks", weights, coefficients), inputs),
        basis,
    )


def _all_tokens(
    one_query: Callable,
    weights: Weights,
    inputs: Features,
    windows: GridWindows,
    others: Sequence[tuple[Window, Array]],
    cls_matrices: ClsMatrices | None,
) -> Query:
    """The outputs of CLS tokens, followed by those of the grid's positions, which `one_query` computes."""
    cls = inputs.shape[1] - windows.num_positions
    patch_weights, patch_inputs = weights[:, :, cls:, cls:], inputs[:, cls:]
    shape = windows.grid_shape
    by_pair = patch_weights.reshape(*patch_weights.shape[:3], *shape)
    by_key = patch_inputs.reshape(inputs.shape[0], *shape, inputs.shape[-1])
    at, arrays = zip((windows.by_pair(2), by_pair), (windows.by_key(), by_key), *others, strict=True)
    outputs = jnp.moveaxis(map_queries(one_query, at, arrays), 0, 1)
    if cls_matrices is not None:
        cls_inputs = inputs[:, :cls]
        outputs += _shared(weights[:, :, cls:, :cls], cls_inputs, cls_matrices.patch_query_cls_key)
        of_cls = _shared(weights[:, :, :cls, :cls], cls_inputs, cls_matrices.cls_query_cls_key)
        of_cls += _shared(weights[:, :, :cls, cls:], patch_inputs, cls_matrices.cls_query_patch_key)
        outputs = jnp.concatenate([of_cls, outputs], 1)
    return outputs.astype(inputs.dtype)


def _shared(weights: Array, inputs: Array, matrix: Matrix) -> Array:
    """Attention with plain values, which do not depend on the offset: sum_s alpha_ts x_s W, [b t h d]."""
    return product_sum("bhts,bshd->bthd", weights, product_sum("bsc,chd->bshd", inputs, matrix))


def table_half(name: str, table: Array, features: int, grid_shape: Sizes) -> Sizes:
    """The half-span of a table [*R ...] with `features` axes after R; ValueError if its shape does not fit."""
    sizes = table.shape[: len(grid_shape)]
    most = grid.relative_shape(grid_shape)
    fits = table.ndim == len(grid_shape) + features
    if not fits or any(size % 2 == 0 or size > limit for size, limit in zip(sizes, most, strict=True)):
        raise ValueError(f"{name} has shape {table.shape}: expected odd sizes of at most {most}, then {features} more")
    return tuple(size // 2 for size in sizes)


def _check(name: str, matrices: Array, weights: Array, inputs: Array, shape: Sizes, cls_matrices: ClsMatrices | None):
    """ValueError unless matrices, tokens and the matrices of CLS tokens fit together."""
    (b, s), h, n, d = inputs.shape[:2], weights.shape[1], grid.num_positions(shape), matrices.shape[-1]
    _check_matrix(name, matrices, weights, inputs, d)
    if weights.shape != (b, h, s, s):
        raise ValueError(f"weights has shape {weights.shape}: expected {(b, h, s, s)}, as inputs has {s} tokens")
    if cls_matrices is None and s != n:
        raise ValueError(f"inputs has {s} tokens: expected {n} for grid_shape={shape} without cls_matrices")
    if cls_matrices is not None and s <= n:
        raise ValueError(f"inputs has {s} tokens: expected more than {n} for grid_shape={shape} with cls_matrices")
    for name, matrix in cls_matrices._asdict().items() if cls_matrices is not None else ():
        _check_matrix(name, matrix, weights, inputs, d)


def _check_matrix(name: str, matrix: Array, weights: Array, inputs: Array, d: int):
    """ValueError unless `matrix` is [... c h d] or [... c 1 d]."""
    c, h = inputs.shape[-1], weights.shape[1]
    if matrix.shape[-3:] not in ((c, h, d), (c, 1, d)):
        raise ValueError(f"{name} has shape {matrix.shape}: expected it to end with ({c}, {h} or 1, {d})")
