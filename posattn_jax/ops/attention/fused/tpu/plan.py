"""How a grid is cut for the fused kernels for TPUs: the width of strips, and the tiles that meet."""

import itertools
from typing import NamedTuple

import numpy as np

from posattn_jax.axes import Shape
from posattn_jax.ops.attention.fused.tpu.strips import Strips

# The sizes of tiles to choose from, whole registers of 128 lanes.
QUERIES = (128, 256)
KEYS = (128, 256)
WIDTHS = (128, 64, 32, 16, 8, 4, 2)
# What a tile costs however few pairs it has, in pairs: what each product and each maximum waits for. By the cycles that
# libtpu's simulator tells of tiles of 128 x 128 to 256 x 256.
TILE_PAIRS = 25_000
# Of a span that is known at run time alone, the half that tiles are made for: this part of the grid.
GUESSED_HALF = 1 / 8


class Tile(NamedTuple):
    """How many queries meet how many keys at once."""

    queries: int
    keys: int


class Plan(NamedTuple):
    """The width of strips; and the tile of the kernels that walk over keys for each tile of queries.

    The kernel that walks over queries for each tile of keys has the same, turned.
    """

    width: int
    tile: Tile


def plan_for(grid_shape: Shape, half: Shape | None) -> Plan:
    """The plan of least cost: pairs that are computed, and TILE_PAIRS a tile. Of equals, the widest strips."""
    if half is None:
        half = [int(np.ceil(GUESSED_HALF * size)) for size in grid_shape]
    widths = WIDTHS if len(grid_shape) > 1 else (1,)
    plans = [Plan(width, Tile(*tile)) for width, *tile in itertools.product(widths, QUERIES, KEYS)]
    return min(plans, key=lambda plan: cost(plan, grid_shape, half))


def cost(plan: Plan, grid_shape: Shape, half: Shape) -> int:
    """Of all positions of a plane, each with the keys of a plane that are met."""
    (queries, keys), width = plan.tile, plan.width
    strips = Strips(tuple(grid_shape), width, max(queries, keys), max(queries, keys), tuple(half))
    reach = int(strips.in_frame(np.array(half))[1])
    met = min(queries + 2 * reach * width, strips.held)
    tiles = -(-strips.held // queries) * -(-met // keys)
    return strips.strips * min(2 * strips.reach[1] + 1, strips.strips) * tiles * (queries * keys + TILE_PAIRS)
