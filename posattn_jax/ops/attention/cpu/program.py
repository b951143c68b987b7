"""Calls the two functions of the compiled kernel from JAX."""

import functools
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posattn_jax.axes import Array
from posattn_jax.ops import grid, scores, span
from posattn_jax.ops.attention.cpu import library
from posattn_jax.ops.attention.kernel import addend_table, factor_table, half_spans, segment_numbers, sum_groups
from posattn_jax.ops.attention.problem import Problem

# As in attention.h: the entries at either end of a row that are read and ignored.
MARGIN = 8
# The bytes of a vector.
VECTOR = 32


def forward(problem: Problem, rows: Array | None) -> tuple[Array, Array]:
    """Outputs [o b t h d] and statistics [o b t h 2], see `Kernel`."""
    learned, given = jax.vmap(_operands)(problem, rows)
    query = learned[0]
    results = (query, jax.ShapeDtypeStruct((*query.shape[:-1], 2), query.dtype))
    outputs, statistics = _call("forward", problem, (*learned, *given), results)
    return outputs[..., : problem.query.shape[-1]], statistics


def backward(problem: Problem, rows: Array | None, outputs: Array, statistics: Array, cotangent: Array) -> Problem:
    """The cotangents of the problem's arrays, see `Kernel`."""
    learned, pull_back, given = jax.vjp(lambda problem: jax.vmap(_operands)(problem, rows), problem, has_aux=True)
    query, key, value, *shared, factor, addend = learned
    o, b, _, h, _ = query.shape
    groups = _groups(o * h, b, key.size, shared[0].size)
    adds = problem.relative_bias is not None or (problem.sigma is not None and problem.span_mode == "log_add")

    def summed(x):
        """The shape of a cotangent that is summed for each group of examples."""
        return jax.ShapeDtypeStruct((groups, *x.shape) if x.size else x.shape, x.dtype)

    def of_table(x, is_learned):
        """The same for a table, which the kernel sums for every head."""
        return jax.ShapeDtypeStruct((groups, o, h, *x.shape[2:]) if is_learned else (0,), x.dtype)

    of_keys = (query if x.size else x for x in (key, value))  # of each head of queries
    results = (query, *of_keys, *map(summed, shared), of_table(factor, problem.multiplies), of_table(addend, adds))
    outputs, cotangent = (_padded(x.astype(query.dtype)) for x in (outputs, cotangent))
    got = _call(
        "backward", problem, (*learned, *given, outputs, statistics, cotangent), results, groups=np.int64(groups)
    )

    def total(x, like):
        """The cotangent of an operand: summed over groups of examples, and over the heads that share it."""
        if not x.size:
            return jnp.zeros_like(like)
        if like is key or like is value:
            return sum_groups(x, like.shape[3])
        x = x if like is query else x.sum(0)
        return x if x.shape == like.shape else x.sum(1, keepdims=True)

    return pull_back(tuple(map(total, got, learned)))[0]


def _operands(problem: Problem, rows: Array | None) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """The arguments of the kernel: those that have a gradient, and the others. What is not given has no entries."""
    dtype, shape = problem.dtype, problem.grid_shape
    nothing = jnp.zeros((0,), dtype)

    def features(x):
        return nothing if x is None else _padded(x.astype(dtype))

    def padded(x, before, fill=0.0):
        edges = [(0, 0)] * (x.ndim - 1) + [(before, MARGIN)]
        return jnp.pad(x, edges, constant_values=fill)

    factor, addend = _tables(problem)
    learned = (
        *map(features, (problem.query, problem.key, problem.value)),
        *map(features, (problem.relative_encoding, problem.content_bias, problem.position_bias)),
        nothing if factor is None else padded(factor, MARGIN),
        nothing if addend is None else padded(addend, MARGIN, scores.MASKED),
    )
    of_keys, segments = nothing, jnp.zeros((0,), jnp.int32)
    if problem.key_mask is not None:
        of_keys = padded(scores.masked_out(problem.key_mask, dtype).reshape(-1, *shape), 0, scores.MASKED)
    if problem.segment_ids is not None:
        segments = padded(segment_numbers(problem.segment_ids).reshape(-1, *shape), 0)
    return learned, (of_keys, half_spans(problem), segments, jnp.zeros((0,), jnp.int32) if rows is None else rows)


def _tables(problem: Problem) -> tuple[Array | None, Array | None]:
    """The tables by offset, [h|1 *R], that turn terms into logits: of factors, by default the scale, and of addends."""
    offsets, dtype, addends = grid.offsets_within(problem.encoded_half), problem.dtype, []
    if problem.is_causal:
        addends.append(scores.masked_out(grid.not_after(offsets, problem.is_causal), dtype)[None])
    if problem.sigma is not None:
        inside = span.inside_span(offsets, problem.half_of(jnp.atleast_2d(problem.sigma)))
        addends.append(scores.masked_out(inside, dtype))
    if (addend := addend_table(problem)) is not None:
        addends.append(addend)
    factor = factor_table(problem, problem.sigma) if problem.sigma is not None and problem.multiplies else None
    addend = functools.reduce(jnp.add, addends) if addends else None
    heads = max((len(x) for x in (factor, addend) if x is not None), default=1)
    beyond = [(size - 1 - most,) * 2 for size, most in zip(problem.grid_shape, problem.encoded_half, strict=True)]

    def wide(table, fill):
        if table is None:
            return None
        table = jnp.pad(table, [(0, 0), *beyond], constant_values=fill)
        return jnp.broadcast_to(table, (heads, *table.shape[1:]))

    return wide(factor, 0.0), wide(addend, scores.MASKED)


def _padded(x: Array) -> Array:
    """Pads features to whole vectors."""
    lanes = VECTOR // x.dtype.itemsize
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % lanes)])


def _groups(heads: int, batch: int, features: int, encoding: int) -> int:
    """The number of groups of examples whose gradients of encodings are summed separately.

    There are enough to keep all threads busy, but not so many that they take more memory than the keys.
    """
    wanted = -(-2 * (os.cpu_count() or 1) // heads)
    return max(1, min(batch, wanted, features // max(encoding, 1)))


def _call(name: str, problem: Problem, given: tuple[Array, ...], results: Any, **attributes: Any) -> Any:
    before = grid.MAX_DIMS - len(problem.grid_shape)
    shape, is_causal = (1,) * before + tuple(problem.grid_shape), problem.is_causal
    axes = (False,) * grid.MAX_DIMS if isinstance(is_causal, bool) else (False,) * before + tuple(is_causal)
    results = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in results]
    target = library.target(name, given[0].dtype.name)
    call = jax.ffi.ffi_call(target, results)
    return call(
        *given,
        size=np.array(shape, np.int64),
        rows_axis=np.int64(before),
        causal=is_causal is True,
        causal_axes=np.array(axes, np.int64),
        scale=np.float64(problem.scaling),
        **attributes,
    )
