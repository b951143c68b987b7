"""How the fused kernels for TPUs lay out a grid, and move scores by offset to where they are by key."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax.ops.attention.tpu import skew
from posattn_jax.ops.attention.tpu.plan import Plan, Tile, plan_for
from posattn_jax.ops.attention.tpu.strips import Lanes, Strips


@pytest.mark.parametrize(
    "grid_shape, width, half, counts, length",
    [
        ((500,), 1, (499,), (1, 1, 4), 512),
        ((40,), 1, (7,), (1, 1, 1), 128),
        ((32, 32), 8, (31, 31), (1, 4, 2), 256),
        ((32, 32), 8, (9, 8), (1, 4, 2), 256),
        ((3, 65), 64, (2, 40), (1, 2, 2), 256),
        ((3, 1), 2, (2, 0), (1, 1, 1), 128),
        ((4, 5, 6), 4, (1, 4, 5), (4, 2, 1), 128),
    ],
)
def test_strips(grid_shape, width, half, counts, length):
    """What is laid out is found again; and at every offset within the span stands its encoding."""
    strips = Strips(grid_shape, width, unit=128, limit=128, half=half, sublanes=min(width, 8) if width > 1 else 8)
    assert (strips.counts, strips.length) == (counts, length)
    x = np.arange(math.prod(grid_shape), dtype=np.float32).reshape(1, *grid_shape, 1)
    laid = jax.jit(strips.lay)(x)
    np.testing.assert_array_equal(jax.jit(strips.unlay)(laid), x)
    laid = np.asarray(strips.in_order(laid)).reshape(*strips.counts[:2], strips.length)
    relative = tuple(2 * size - 1 for size in grid_shape)
    encodings = jax.jit(strips.encodings)(np.arange(1, math.prod(relative) + 1, dtype=np.float32).reshape(*relative, 1))
    encodings = np.asarray(encodings)
    rng = np.random.default_rng(0)
    for _ in range(50):
        query = rng.integers(0, grid_shape)
        offset = np.clip(rng.integers(-np.array(half), np.array(half) + 1), -query, np.array(grid_shape) - 1 - query)
        (qz, qy, qx), (kz, ky, kx) = (strips.in_frame(where) for where in (query, query + offset))
        q, k = (y * width + x % width for y, x in ((qy, qx), (ky, kx)))
        assert laid[qz, qx // width, q] == x[(0, *query, 0)]
        steps = np.array([kz - qz, kx // width - qx // width, k // strips.chunk - q // strips.chunk])
        along = k - q - (steps[2] - 1) * strips.chunk
        band = int(kx % width < qx % width)
        expected = np.ravel_multi_index(offset + np.array(grid_shape) - 1, relative) + 1
        assert encodings[(*steps + strips.reach, band, along, 0)] == expected


@pytest.mark.parametrize("lanes", [Lanes(3, 4, 2, 8), Lanes(3, 2, 3, 8), Lanes(1, 3, 1, 3), Lanes(2, 8, 1, 8)], ids=str)
def test_lanes(lanes):
    """Heads lie side by side in groups, with zeros behind features, heads and groups that are not full."""
    x = np.arange(1, 4 * lanes.heads * 2 + 1).reshape(4, lanes.heads, 2)
    joined = np.asarray(lanes.join(jnp.asarray(x)))
    assert joined.shape == (4, lanes.groups * lanes.width)
    np.testing.assert_array_equal(lanes.part(jnp.asarray(joined), 2), x)
    assert np.count_nonzero(joined) == x.size
    for head in range(lanes.heads):
        group, member = divmod(head, lanes.group)
        first = group * lanes.width + member * lanes.each
        np.testing.assert_array_equal(joined[:, first : first + 2], x[:, head])


@pytest.mark.parametrize("tile", [(4, 4), (4, 8), (8, 4)])
def test_skew(tile):
    queries, keys = tile
    x = np.random.default_rng(0).normal(size=(queries, queries + keys)).astype(np.float32)
    m, n = np.indices(tile)
    by_key = x[m, n - m + queries]
    np.testing.assert_array_equal(jax.jit(skew.by_key)(x), by_key)
    by_offset = np.zeros_like(x)
    by_offset[m, n - m + queries] = by_key
    np.testing.assert_array_equal(jax.jit(skew.by_offset)(by_key), by_offset)


@pytest.mark.parametrize(
    "grid_shape, half, expected",
    [
        ((64, 64), (8, 8), Plan(8, Tile(128, 256))),  # 16 rows of queries, and the 32 that they reach
        ((64, 64), (63, 63), Plan(64, Tile(256, 256))),  # all pairs: one strip, and the largest tiles
        ((8192,), (256,), Plan(1, Tile(256, 256))),
        ((256, 256), None, Plan(16, Tile(256, 256))),  # as for a half-span of 32
    ],
    ids=str,
)
def test_plans(grid_shape, half, expected):
    assert plan_for(grid_shape, half) == expected
