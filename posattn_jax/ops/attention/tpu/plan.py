"""Chooses how a grid is cut for the fused TPU kernels: the width of strips, and the sizes of tiles and chunks."""

import itertools
import math
from typing import NamedTuple

import numpy as np

from posattn_jax.axes import Shape
from posattn_jax.ops.attention.problem import Problem
from posattn_jax.ops.attention.tpu.skew import LANES
from posattn_jax.ops.attention.tpu.strips import Lanes, Strips

# The sizes of tiles to choose from, in whole registers of 128 lanes.
QUERIES = (128, 256)
KEYS = (128, 256)
WIDTHS = (128, 64, 32, 16, 8)
# The fixed cost of a tile, in pairs: the latency of its products and maxima. It comes from the cycles that libtpu's
# simulator reports for tiles of 128 x 128 to 256 x 256.
TILE_PAIRS = 25_000
# If the span is known only at run time, tiles are chosen for a half-span of this share of the grid.
GUESSED_HALF = 1 / 8
# The part of a kernel's 16 MiB of VMEM that its arrays may fill; the rest is for scores.
ROOM = 12 * 2**20
# The most positions of a chunk: a power of two.
LONGEST = 1024


class Tile(NamedTuple):
    """The number of queries and the number of keys that meet at once."""

    queries: int
    keys: int


class Plan(NamedTuple):
    """The width of strips, and the tile of the kernels that walk over keys for each tile of queries.

    The kernel that walks over queries for each tile of keys has the transposed tile.
    """

    width: int
    tile: Tile


def plan_for(grid_shape: Shape, half: Shape | None) -> Plan:
    """The plan of least cost, which is the computed pairs plus TILE_PAIRS per tile; of equals, the widest strips."""
    if half is None:
        half = [int(np.ceil(GUESSED_HALF * size)) for size in grid_shape]
    widths = WIDTHS if len(grid_shape) > 1 else (1,)
    plans = [Plan(width, Tile(*tile)) for width, *tile in itertools.product(widths, QUERIES, KEYS)]
    return min(plans, key=lambda plan: cost(plan, grid_shape, half))


def cost(plan: Plan, grid_shape: Shape, half: Shape) -> int:
    """The cost for all positions of a plane, each with the keys of one plane within reach."""
    (queries, keys), width = plan.tile, plan.width
    strips = Strips(tuple(grid_shape), width, max(queries, keys), max(queries, keys), tuple(half))
    reach = int(strips.in_frame(np.array(half))[1])
    met = min(queries + 2 * reach * width, strips.positions)
    tiles = -(-strips.positions // queries) * -(-met // keys)
    return strips.strips * min(2 * strips.reach[1] + 1, strips.strips) * tiles * (queries * keys + TILE_PAIRS)


def lanes_for(problem: Problem, most: int) -> dict[str, Lanes]:
    """The lanes of "value" and "key", and of "encoding" if there is one: as many heads in a group as fit into `most`.

    All have the same groups. A head has at least the lanes of its three statistics. If a head alone has more features
    than `most`, it is padded to a multiple of `most`.
    """
    _, _, h, d = problem.query.shape
    features = {"key": d, "value": problem.value.shape[-1]}
    if problem.encoding is not None:
        features["encoding"] = problem.encoding.shape[-1]
    each = 1 << (max(3, *features.values()) - 1).bit_length()
    if each <= most:
        group = min(h, most // each)
        return dict.fromkeys(features, Lanes(h, each, group, each if group == 1 else most))
    sizes = {name: -(-size // most) * most for name, size in features.items()}
    return {name: Lanes(h, size, 1, size) for name, size in sizes.items()}


def arrange(
    problem: Problem, lanes: dict[str, Lanes], width: int, unit: int, limit: int | None, room: int, sublanes: int
) -> tuple[Strips, bool]:
    """The strips, and whether the cotangents of all encodings of a group fit next to the chunks into `room` bytes.

    Without a `limit`, chunks are the longest with which they fit. If there are none, chunks fit `room` by themselves.
    """

    def strips(limit):
        half = problem.static_half or tuple(size - 1 for size in problem.grid_shape)
        return Strips(problem.grid_shape, width, unit, limit, half, sublanes)

    sizes = {name: -(-each.width // LANES) * LANES for name, each in lanes.items()}
    itemsize = problem.dtype.itemsize
    d, encoded = max(sizes["key"], sizes["value"]), sizes.get("encoding", 0)
    features = 4 * d + 5 * encoded  # query, key, value, cotangent; query, and two bands of twice as many encodings

    def per_position(accumulators):
        return 2 * (features * problem.value.dtype.itemsize + (accumulators + d) * itemsize)  # d: statistics

    limits = [limit] if limit else [LONGEST >> k for k in range(LONGEST.bit_length()) if (LONGEST >> k) % unit == 0]
    for tried in map(strips, limits if encoded else []):
        encodings = math.prod(2 * reach + 1 for reach in tried.reach) * tried.bands * 2 * tried.chunk * encoded
        if 2 * encodings * itemsize + tried.chunk * per_position(d + encoded) <= room:
            return tried, True
    most = min(room // per_position(max(d + encoded, 4 * encoded)), LONGEST)
    return strips(limit or max(most // unit, 1) * unit), False
