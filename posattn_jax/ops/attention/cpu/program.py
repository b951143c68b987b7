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
from posattn_jax.ops.attention.kernel import (
    FEATURES,
    LEARNED,
    Settings,
    addend_table,
    factor_table,
    half_spans,
    multiplies,
    sum_groups,
)
from posattn_jax.ops.attention.problem import Problem

# As in attention.h: the entries at either end of a row that are read and ignored.
MARGIN = 8
# The bytes of a vector.
VECTOR = 32


def forward(settings: Settings, arrays: dict[str, Array]) -> tuple[Array, Array]:
    """Outputs [o b t h d] and statistics [o b t h 2] of arrays that each have one more leading axis, o."""
    given, _ = _given(settings, arrays)
    query = given[0]
    results = (query, jax.ShapeDtypeStruct((*query.shape[:-1], 2), query.dtype))
    outputs, statistics = _call("forward", settings, given, results)
    return outputs[..., : arrays["value"].shape[-1]], statistics


def backward(
    settings: Settings, arrays: dict[str, Array], outputs: Array, statistics: Array, cotangent: Array
) -> dict[str, Array]:
    """The cotangents of all arrays except those in `GIVEN`."""
    given, (tables, to_learned) = _given(settings, arrays)
    query, key, value, encoding, content_bias, position_bias, factor, addend = given[:8]
    o, b, _, h, _ = query.shape
    learned = {
        "factor": "factor" in tables,
        "addend": "relative_bias" in arrays or ("sigma" in arrays and settings.span_mode == "log_add"),
    }
    groups = _groups(o * h, b, key.size, encoding.size)

    def summed(x):
        """The shape of a cotangent that is summed for each group of examples."""
        return jax.ShapeDtypeStruct((groups, *x.shape) if x.size else x.shape, x.dtype)

    def of_table(name, x):
        """The same for a table, which the kernel sums for every head."""
        shape = (groups, o, h, *x.shape[2:]) if learned[name] else (0,)
        return jax.ShapeDtypeStruct(shape, x.dtype)

    of_keys = (query if x.size else x for x in (key, value))  # of each head of queries
    results = (query, *of_keys, *map(summed, (encoding, content_bias, position_bias)))
    results += (of_table("factor", factor), of_table("addend", addend))
    outputs, cotangent = (_padded(x.astype(query.dtype)) for x in (outputs, cotangent))
    got = _call("backward", settings, (*given, outputs, statistics, cotangent), results, groups=np.int64(groups))
    d = arrays["value"].shape[-1]
    cotangents = {
        name: (x if name in FEATURES else x.sum(0))[..., :d]
        for name, x in zip((*FEATURES, *LEARNED), got[:6], strict=True)
        if name in arrays
    }
    for name in cotangents.keys() & {"key", "value"}:
        cotangents[name] = sum_groups(cotangents[name], arrays[name].shape[3])
    d_tables = {name: jnp.zeros_like(x) for name, x in tables.items()}
    for name, x in zip(("factor", "addend"), got[6:], strict=True):
        if learned[name]:
            x = x.sum(0)[..., MARGIN:-MARGIN]
            d_tables[name] = x.sum(1, keepdims=True) if tables[name].shape[1] < h else x
    return cotangents | to_learned(d_tables)[0]


def _given(settings: Settings, arrays: dict[str, Array]) -> tuple[tuple[Array, ...], Any]:
    """The arguments of the kernel; the tables; and the function from their cotangents to those of sigma and beta."""
    query = arrays["query"]
    o, b = query.shape[:2]
    problem = settings.problem({name: x[0] for name, x in arrays.items()})
    dtype = problem.dtype
    learned = {name: arrays[name] for name in ("sigma", "relative_bias") if name in arrays}
    tables, to_learned = jax.vjp(jax.vmap(lambda learned: _tables(problem, learned), axis_size=o), learned)
    half = half_spans(problem, arrays)
    nothing = jnp.zeros((0,), dtype)

    def features(name):
        return _padded(arrays[name].astype(dtype)) if name in arrays else nothing

    def table(name, fill):
        if name not in tables:
            return nothing
        edges = [(0, 0)] * (tables[name].ndim - 1) + [(MARGIN, MARGIN)]
        return jnp.pad(tables[name], edges, constant_values=fill)

    of_keys = nothing
    if "key_mask" in arrays:
        of_keys = scores.masked_out(arrays["key_mask"], dtype).reshape(o, b, *settings.grid_shape)
        of_keys = jnp.pad(of_keys, [(0, 0)] * (of_keys.ndim - 1) + [(0, MARGIN)], constant_values=scores.MASKED)
    segments = jnp.zeros((0,), jnp.int32)
    if "segment_ids" in arrays:
        segments = arrays["segment_ids"].astype(jnp.int32).reshape(o, b, *settings.grid_shape)
        segments = jnp.pad(segments, [(0, 0)] * (segments.ndim - 1) + [(0, MARGIN)])
    given = (*map(features, (*FEATURES, *LEARNED)), table("factor", 0), table("addend", scores.MASKED), of_keys)
    rows = arrays.get("query_rows", jnp.zeros((0,), jnp.int32))
    given += (half, segments, rows)
    return given, (tables, to_learned)


def _tables(problem: Problem, learned: dict[str, Array]) -> dict[str, Array]:
    """The tables by offset, [h|1 *R], that turn terms into logits: `factor`, by default the scale, and `addend`."""
    offsets, dtype, tables, addends = grid.relative_offsets(problem.grid_shape), problem.dtype, {}, []
    if problem.is_causal:
        addends.append(scores.masked_out(grid.not_after(offsets, problem.is_causal), dtype)[None])
    if "sigma" in learned:
        inside = span.inside_span(offsets, problem.half_of(jnp.atleast_2d(learned["sigma"])))
        addends.append(scores.masked_out(inside, dtype))
    if multiplies(problem, learned):
        tables["factor"] = factor_table(problem, learned["sigma"])
    if (addend := addend_table(problem, learned)) is not None:
        addends.append(addend)
    if addends:
        tables["addend"] = functools.reduce(jnp.add, addends)
    heads = max((len(x) for x in tables.values()), default=1)
    return {name: jnp.broadcast_to(x, (heads, *x.shape[1:])) for name, x in tables.items()}


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


def _call(name: str, settings: Settings, given: tuple[Array, ...], results: Any, **attributes: Any) -> Any:
    before = grid.MAX_DIMS - len(settings.grid_shape)
    shape, is_causal = (1,) * before + tuple(settings.grid_shape), settings.is_causal
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
        scale=np.float64(settings.scale),
        **attributes,
    )
