"""Points of the benchmark against loops over every pair, and against the operation's own spans."""

import itertools

import jax
import numpy as np
import pytest

from posattn_jax.benchmarks.roofline import Rates, limit_seconds
from posattn_jax.benchmarks.shapes import THRESHOLD, Point, make_inputs, parse_points, parse_shape
from posattn_jax.ops.span import span_size


def every_half(shape):
    return itertools.product(*(range(size) for size in shape))


@pytest.mark.parametrize("shape", [(1,), (2,), (5,), (8,), (1, 3), (4, 3), (5, 5), (3, 1, 2), (3, 4, 2)], ids=str)
def test_pairs(shape):
    positions = list(itertools.product(*(range(size) for size in shape)))
    for half in every_half(shape):
        point = Point("", shape, half)
        pairs = sum(
            all(abs(i - j) <= reach for i, j, reach in zip(t, s, half, strict=True))
            for t in positions
            for s in positions
        )
        assert point.pairs == pairs
        assert point.pair_ratio == len(positions) ** 2 / pairs
        assert point.num_positions == len(positions)


@pytest.mark.parametrize(
    "shape", [(2,), (3,), (17,), (1024,), (16384,), (1, 5), (32, 32), (64, 7), (2, 16, 1)], ids=str
)
def test_sigma_has_the_half_span(shape):
    reaches = [sorted({min(max(1, round(share * (size - 1))), size - 1) for share in SHARES}) for size in shape]
    halves = np.array(list(itertools.product(*reaches)))
    sigmas = np.array([Point("", shape, tuple(int(reach) for reach in half)).sigma for half in halves])
    sizes = jax.jit(lambda sigmas: span_size(sigmas, THRESHOLD, shape))(sigmas.astype(np.float32))
    np.testing.assert_array_equal(sizes, 2 * halves + 1)


SHARES = (0.001, 0.05, 0.12, 0.25, 1 / 3, 0.5, 0.77, 0.999, 1)


@pytest.mark.parametrize(
    "name, shape",
    [("1d1024", (1024,)), ("2d32", (32, 32)), ("2d64x32", (64, 32)), ("3d16", (16, 16, 16)), ("3d1x2x3", (1, 2, 3))],
)
def test_parse_shape(name, shape):
    assert parse_shape(name) == shape


def test_parse_points():
    points = parse_points(["2d33x9", "1d4", "2d33x9"], ["1", ".25", ".01", ".02"], window=10)
    assert [(point.name, point.half) for point in points] == [
        ("2d33x9", (1, 1)),
        ("2d33x9", (8, 2)),
        ("2d33x9", (10, 8)),
        ("2d33x9", (32, 8)),
        ("1d4", (1,)),
        ("1d4", (3,)),
    ]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_inputs(dtype):
    inputs = make_inputs(Point("2d4x3", (4, 3), (2, 1)), 2, 5, 6, dtype)
    assert inputs["query"].shape == inputs["key"].shape == inputs["value"].shape == (2, 12, 5, 6)
    assert inputs["relative_encoding"].shape == (7, 5, 5, 6)
    assert {str(inputs[name].dtype) for name in inputs if name != "sigma"} == {dtype}
    assert inputs["sigma"].dtype == np.float32


def test_roofline():
    """By hand: 4 positions, 10 pairs, 3 of 7 offsets; b = 2, h = 3, d = 5."""
    point = Point("1d4", (4,), (1,))
    rates = Rates({"float32": 1e3, "bfloat16": 2e3}, 1e2, 1e4)
    forward = 60 * 30 / 2e3 + 60 / 1e2 + 2 * (4 * 120 + 3 * 15) / 1e4
    assert limit_seconds(point, 2, 3, 5, 2, rates, backward=False) == pytest.approx(forward)
    backward = 60 * 110 / 2e3 + 120 / 1e2 + 2 * (11 * 120 + 6 * 15 + 7 * 15) / 1e4
    assert limit_seconds(point, 2, 3, 5, 2, rates, backward=True) == pytest.approx(backward)
