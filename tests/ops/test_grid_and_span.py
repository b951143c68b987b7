import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax.ops import grid, span


@pytest.mark.parametrize("shape", [(1,), (4,), (2, 1), (3, 2, 2)], ids=str)
def test_offsets_and_coordinates(shape):
    offsets, x = np.asarray(grid.relative_offsets(shape)), np.asarray(grid.relative_coordinates(shape))
    assert offsets.shape == (*grid.relative_shape(shape), len(shape)) == (*(2 * s - 1 for s in shape), len(shape))
    for index in itertools.product(*(range(2 * s - 1) for s in shape)):
        expected = [i - (s - 1) for i, s in zip(index, shape, strict=True)]
        assert offsets[index].tolist() == expected
        for coordinate, o, s in zip(x[index], expected, shape, strict=True):
            assert coordinate == pytest.approx(o / (s - 1) if s > 1 else 0)
    assert grid.num_positions(shape) == math.prod(shape)
    assert [tuple(p) for p in grid.positions(shape)] == list(np.ndindex(*shape))


@pytest.mark.parametrize("shape", [(), (0,), (1, 1, 1, 1)])
def test_bad_grid(shape):
    with pytest.raises(ValueError, match="one to 3 sizes"):
        grid.check_grid(shape)


def test_initial_span_of_the_paper_does_not_cover_the_grid():
    """sigma = .3 reaches 1,319 of 2,047 offsets in 1-D and 41 x 41 of 63 x 63 in 2-D (section 4.3 says all)."""
    sigma = jnp.full(2, 0.3)
    assert span.span_size(sigma[:1], 0.1, (1024,)).tolist() == [1319]
    assert span.span_size(sigma, 0.1, (32, 32)).tolist() == [41, 41]


def test_span_size():
    sigma = jnp.array([-0.1, 5.0, 0.2])
    assert span.span_size(sigma, 0.1, (11, 11, 1)).tolist() == [2 * 3 + 1, 21, 1]
    assert span.span_size(sigma, 0.0, (11, 11, 1)).tolist() == [21, 21, 1]
    assert span.span_size(sigma[:1], 0.1, (21,), reference_shape=(11,)).tolist() == [7]
    assert span.span_size(jnp.stack([sigma, sigma]), 0.1, (11, 11, 1)).shape == (2, 3)


def test_a_bfloat16_sigma_reaches_as_far_as_its_value():
    sigma = jnp.full(1, 0.3, jnp.bfloat16)
    assert span.span_size(sigma, 0.1, (1024,)).tolist() == [2 * math.ceil(2.145966 * float(sigma[0]) * 1023) + 1]
    offsets = jnp.arange(-1023, 1024)[:, None]
    inside = span.inside_span(offsets, span.half_span(sigma, 0.1, (1024,)))
    assert inside.sum() == span.span_size(sigma, 0.1, (1024,))[0]


def test_gaussian():
    g = span.gaussian((3, 4), jnp.array([0.5, -0.25]))
    assert g.shape == (5, 7) and g[2, 3] == 1
    assert g[0, 5] == pytest.approx(math.exp(-0.5 * ((1 / 0.5) ** 2 + (2 / 3 / 0.25) ** 2)))
    assert span.gaussian((3, 4), jnp.full((6, 2), 0.3)).shape == (6, 5, 7)


def test_no_gradient_through_the_size_but_through_the_gaussian():
    sigma = jnp.array([0.3, 0.2])
    assert not jax.jit(jax.grad(lambda s: span.half_span(s, 0.1, (5, 5)).sum()))(sigma).any()
    assert jax.jit(jax.grad(lambda s: span.gaussian((5, 5), s).sum()))(sigma).all()


def test_a_precision_learns_however_wide_the_span_is():
    """d ln G / da = -x^2 / 2 where a > 0; its sign does not count."""
    x, a = jnp.array([0.5, -1.0]), jnp.array([1e-6, -4.0])
    np.testing.assert_allclose(span.of_precision(a), [1000, 0.5], rtol=1e-5)
    gradient = jax.grad(lambda a: span.log_gaussian(x, span.of_precision(a)))(a)
    np.testing.assert_allclose(gradient, [-0.125, 0.5], rtol=1e-5)


def test_span_share():
    reach = math.sqrt(-2 * math.log(0.1))
    """Of all pairs, not of all offsets: near ones stand for more pairs."""
    share = span.span_share(jnp.array([-0.2, 0.1]), 0.1)
    assert share == pytest.approx(math.prod(1 - (1 - reach * each) ** 2 for each in (0.2, 0.1)), rel=1e-5)
    assert span.span_share(jnp.array([3.0, 0.1]), 0.1) == pytest.approx(1 - (1 - reach * 0.1) ** 2, rel=1e-5)
    assert jax.jit(jax.grad(span.span_share), static_argnums=1)(jnp.array([0.2, 0.1]), 0.1).all()
    near = np.abs(np.subtract.outer(np.arange(4001), np.arange(4001))) <= 4000 * reach * 0.1  # counted, on a fine grid
    assert span.span_share(jnp.array([0.1]), 0.1) == pytest.approx(near.mean(), rel=1e-3)


@pytest.mark.parametrize(
    "shape, half", [((5,), (0,)), ((5,), (2,)), ((4, 3), (1, 2)), ((2, 1, 6), (1, 0, 3)), ((3,), (7,))]
)
def test_the_share_of_pairs_is_counted(shape, half):
    places = grid.positions(shape)
    near = (np.abs(places[:, None] - places) <= half).all(-1)
    assert span.pair_share(half, shape) == pytest.approx(near.mean())


def test_the_box_of_a_factor_bounds_its_ellipse():
    """The half-span is as far as the ellipse G = threshold reaches along each dimension, in whole positions."""
    factor = np.array([[[0.2, 9.0], [-0.3, 0.1]], [[-0.1, 0.0], [0.15, 0.05]]], np.float32)
    log_gaussian = jax.jit(span.log_gaussian)
    halves = np.asarray(span.half_span(jnp.asarray(factor), 0.1, (31, 21)))
    angles = np.linspace(0, 2 * np.pi, 100_001)
    circle = math.sqrt(-2 * math.log(0.1)) * np.stack([np.cos(angles), np.sin(angles)], -1)
    for lower, half in zip(factor, halves, strict=True):
        signs = np.sign(np.diagonal(lower)) * np.eye(2) + np.tri(2, k=-1)  # of the diagonal the magnitude counts
        ellipse = circle @ (np.tril(lower) * signs).T
        np.testing.assert_allclose(np.exp(log_gaussian(ellipse, lower[None])), 0.1, rtol=1e-3)
        np.testing.assert_array_equal(half, np.minimum(np.ceil(np.abs(ellipse).max(0) * [30, 20]), [30, 20]))
    assert span.span_size(jnp.asarray(factor), 0.1, (31, 21)).shape == (2, 2)


def test_span_share_of_a_factor_is_that_of_its_box():
    factor = jnp.array([[[0.1, 0.0], [0.06, -0.08]]])
    assert span.span_share(factor, 0.1) == pytest.approx(float(span.span_share(jnp.full(2, 0.1), 0.1)), rel=1e-5)
    differentiate = jax.jit(jax.grad(span.span_share), static_argnums=1)
    gradient = np.asarray(differentiate(factor, 0.1))[0]
    assert (gradient[1] * factor[0, 1] > 0).all() and gradient[0, 1] == 0
    assert not differentiate(jnp.zeros((1, 3, 3)), 0.1).any()


def test_gaussian_of_a_factor():
    g = span.gaussian((3, 4), jnp.array([[[0.5, 7.0], [0.25, 0.25]]]))
    assert g.shape == (1, 5, 7)
    covariance = np.array([[0.25, 0.125], [0.125, 0.125]])
    x = np.array([-1, 2 / 3])
    assert g[0, 0, 5] == pytest.approx(math.exp(-0.5 * x @ np.linalg.inv(covariance) @ x), rel=1e-5)
