"""Turns the scores of a tile by offset into scores by key, and back: row m is shifted by m lanes.

A tile has T queries, S keys and T + S offsets. Column c of x [T, T + S] belongs to offset c - T, so query m and key n
need column n - m + T. Registers have SUBLANES rows and LANES columns. Blocks of LANES columns are rolled separately,
and two neighbouring ones make one block of keys.
"""

import functools

import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import tpu as pltpu

from posattn_jax.axes import Array

LANES = 128
SUBLANES = 8


def by_key(x: Array) -> Array:
    """[T, T + S] by offset -> [T, S] by key."""
    queries, offsets = x.shape
    lanes = lanes_of(queries, offsets - queries)
    groups = queries // lanes
    row, lane = _indices(lanes)

    def of_group(group):
        @functools.cache
        def rolled(block):
            return pltpu.roll(_block(x, lanes, group, block), 0, 1, stride=1, stride_axis=0)

        first = groups - group
        return [
            jnp.where(lane >= row, rolled(first + n), rolled(first + n - 1)) for n in range(offsets // lanes - groups)
        ]

    return _join([of_group(group) for group in range(groups)])


def by_offset(x: Array) -> Array:
    """The transpose of `by_key`: [T, S] by key -> [T, T + S] by offset."""
    queries, keys = x.shape
    lanes = lanes_of(queries, keys)
    groups, blocks = queries // lanes, keys // lanes
    row, lane = _indices(lanes)
    # Factors and not a selection, because libtpu 0.0.52 fails on products of values that were selected from zeros.
    second = (lane + row >= lanes).astype(x.dtype)
    first = 1 - second

    def of_group(group):
        @functools.cache
        def rolled(block):
            if not 0 <= block < blocks:
                return jnp.zeros((lanes, lanes), x.dtype)
            return _rolled_to_the_left(_block(x, lanes, group, block))

        start = group - groups
        return [first * rolled(start + c) + second * rolled(start + c + 1) for c in range(groups + blocks)]

    return _join([of_group(group) for group in range(groups)])


def lanes_of(queries: int, keys: int) -> int:
    """The number of columns that are rolled at once: those of a register, or of a smaller tile."""
    return min(queries, keys, LANES)


def _rolled_to_the_left(x):
    """Rolls row m to the left by m lanes.

    A stride cannot be negative. So rows are rolled by the bits of m within a register, and then each register at once.
    """
    lanes = x.shape[1]
    sublanes = min(lanes, SUBLANES)
    row = lax.broadcasted_iota(jnp.int32, x.shape, 0)
    for step in (1 << bit for bit in range(sublanes.bit_length() - 1)):
        x = jnp.where(row & step != 0, pltpu.roll(x, lanes - step, 1), x)
    registers = [x[first : first + sublanes] for first in range(0, len(x), sublanes)]
    return jnp.concatenate([pltpu.roll(x, (lanes - m * sublanes) % lanes, 1) for m, x in enumerate(registers)], 0)


def _block(x, lanes, group, block):
    return x[group * lanes : (group + 1) * lanes, block * lanes : (block + 1) * lanes]


def _indices(lanes):
    return (lax.broadcasted_iota(jnp.int32, (lanes, lanes), axis) for axis in (0, 1))


def _join(blocks):
    return jnp.concatenate([jnp.concatenate(row, 1) for row in blocks], 0)
