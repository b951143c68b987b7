"""The inputs of benchmarks: points, each a grid with a span of an exact size, and arrays for attention."""

import dataclasses
import math
import re

import jax.numpy as jnp
import numpy as np

from posattn_jax.axes import Array
from posattn_jax.ops import grid
from posattn_jax.system.errors import InputError

# The threshold at which the Gaussian of a span is cut off.
THRESHOLD = 0.1

SHAPE_HELP = 'expected such as "1d1024", "2d32" (32 x 32), "2d64x32" or "3d16": one size, or one a dimension'


@dataclasses.dataclass(frozen=True)
class Point:
    """A grid, and the reach of its span on each side in positions, 0 <= half_i <= S_i - 1."""

    name: str
    grid_shape: tuple[int, ...]
    half: tuple[int, ...]

    @property
    def num_positions(self) -> int:
        """N = prod(S)."""
        return grid.num_positions(self.grid_shape)

    @property
    def pairs(self) -> int:
        """The number of pairs (query, key) inside the spans of all queries, cut off at the borders of the grid.

        prod_i sum_t #{s: |s - t| <= half_i} = prod_i [S_i (2 half_i + 1) - half_i (half_i + 1)]
        """
        sizes = zip(self.grid_shape, self.half, strict=True)
        return math.prod(size * (2 * half + 1) - half * (half + 1) for size, half in sizes)

    @property
    def window(self) -> int:
        """prod(2 half + 1): the offsets inside the span of one query."""
        return math.prod(2 * half + 1 for half in self.half)

    @property
    def pair_ratio(self) -> float:
        """N^2 / pairs: the number of all pairs, relative to those inside the spans."""
        return self.num_positions**2 / self.pairs

    @property
    def sigma(self) -> tuple[float, ...]:
        """The sigma whose half-span is exactly `half` at `THRESHOLD`, with half a position of margin for rounding.

        half = ceil(sqrt(-2 ln threshold) sigma (S - 1)), so sigma = (half - 1/2) / (S - 1) / sqrt(-2 ln threshold).
        If S = 1, any sigma will do.
        """
        reach = math.sqrt(-2 * math.log(THRESHOLD))
        sizes = zip(self.grid_shape, self.half, strict=True)
        return tuple(max(half - 0.5, 0.5) / max(size - 1, 1) / reach for size, half in sizes)


def parse_points(shapes: list[str], spans: list[str], window: int | None = None) -> list[Point]:
    """Every grid with every span; the points of a grid go from the smallest span to the largest, without duplicates.

    Args:
      shapes: as in `SHAPE_HELP`.
      spans: half-spans as shares of S - 1, more than 0 and at most 1; each is at least one position.
      window: one more half-span, in positions, for every grid.

    Raises:
      InputError: an invalid shape or span.
    """
    shares = [parse_span(span) for span in spans]
    points = []
    for name in dict.fromkeys(shapes):
        shape = parse_shape(name)
        halves = {tuple(min(max(1, round(share * (size - 1))), size - 1) for size in shape) for share in shares}
        if window is not None:
            halves.add(tuple(min(window, size - 1) for size in shape))
        points += sorted((Point(name, shape, half) for half in halves), key=lambda point: (point.window, point.half))
    return points


def parse_shape(name: str, flag: str = "shapes") -> tuple[int, ...]:
    """Of a flag: "2d64x32" -> (64, 32) and "2d32" -> (32, 32)."""
    match = re.fullmatch(rf"([1-{grid.MAX_DIMS}])d(\d+(?:x\d+)*)", name)
    if not match:
        raise InputError(f"--{flag}={name}: {SHAPE_HELP}")
    dims, sizes = int(match[1]), tuple(int(size) for size in match[2].split("x"))
    if len(sizes) == 1:
        sizes *= dims
    if len(sizes) != dims:
        raise InputError(f"--{flag}={name}: {len(sizes)} sizes for {dims} dimensions: {SHAPE_HELP}")
    if math.prod(sizes) < 2:
        raise InputError(f"--{flag}={name}: expected at least 2 positions")
    return sizes


def parse_sizes(sizes: str, flag: str) -> tuple[int, ...]:
    """Of a flag: "64x32" -> (64, 32)."""
    try:
        return grid.check_grid([int(size) for size in sizes.split("x")])
    except ValueError as error:
        raise InputError(f"--{flag}={sizes}: expected one to {grid.MAX_DIMS} sizes, such as 8x8") from error


def parse_span(span: str) -> float:
    """A half-span as a share of S - 1, in (0, 1]."""
    try:
        share = float(span)
    except ValueError:
        share = math.nan
    if not 0 < share <= 1:
        raise InputError(f"--spans={span}: expected half-spans as shares of the grid, more than 0 and at most 1")
    return share


def input_shapes(point: Point, batch: int, heads: int, head_dim: int) -> dict[str, tuple[int, ...]]:
    """The shapes of the arrays for `relative_attention`, except sigma."""
    features = (batch, point.num_positions, heads, head_dim)
    return {
        "query": features,
        "key": features,
        "value": features,
        "relative_encoding": (*grid.relative_shape(point.grid_shape), heads, head_dim),
        "content_bias": (heads, head_dim),
        "position_bias": (heads, head_dim),
    }


def make_inputs(point: Point, batch: int, heads: int, head_dim: int, dtype: str, seed: int = 0) -> dict[str, Array]:
    """The arrays for `relative_attention`, normally distributed, in `dtype`; sigma is float32, which positions need."""
    rng = np.random.default_rng(seed)
    sizes = input_shapes(point, batch, heads, head_dim)
    inputs = {name: jnp.asarray(rng.standard_normal(size, np.float32), dtype) for name, size in sizes.items()}
    return inputs | {"sigma": jnp.asarray(point.sigma, jnp.float32)}
