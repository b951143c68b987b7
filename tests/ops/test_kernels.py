"""Kernels laid out over a grid, and keys that score them, against loops."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax.ops.kernels import by_pair, key_scores, over_offsets
from tests import oracle

GRIDS_AND_KERNELS = [
    ((5,), (3,)),
    ((2,), (7,)),
    ((1,), (3,)),
    ((3, 4), (3, 1)),
    ((2, 1), (5, 3)),
    ((2, 3, 2), (3, 3, 1)),
]


@pytest.mark.parametrize("outside", ["clip", "drop"])
@pytest.mark.parametrize("grid_shape, kernel_shape", GRIDS_AND_KERNELS, ids=str)
def test_a_kernel_over_offsets(grid_shape, kernel_shape, outside):
    table = np.random.default_rng(0).normal(size=(*kernel_shape, 2)).astype(np.float32)
    laid_out = np.asarray(jax.jit(over_offsets, static_argnums=(1, 2))(table, grid_shape, outside))
    half = [size // 2 for size in kernel_shape]
    for offset in itertools.product(*(range(1 - size, size) for size in grid_shape)):
        clipped = [max(-reach, min(o, reach)) for o, reach in zip(offset, half, strict=True)]
        expected = table[tuple(o + reach for o, reach in zip(clipped, half, strict=True))]
        if outside == "drop" and list(offset) != clipped:
            expected = [0, 0]
        index = tuple(o + size - 1 for o, size in zip(offset, grid_shape, strict=True))
        np.testing.assert_array_equal(laid_out[index], expected)


def test_what_was_dropped_has_no_gradient():
    def total(table, outside):
        return (jnp.arange(1.0, 10) * over_offsets(table, (5,), outside)).sum()

    ones = jnp.ones(3)
    np.testing.assert_array_equal(jax.grad(total)(ones, "drop"), [4, 5, 6])
    np.testing.assert_array_equal(jax.grad(total)(ones, "clip"), [1 + 2 + 3 + 4, 5, 6 + 7 + 8 + 9])


@pytest.mark.parametrize(
    "kernel_shape, outside, message",
    [
        ((4,), "clip", r"kernel_shape=\(4,\): .*\(5,\)"),
        ((3,), "full", 'outside="full": .*"clip"'),
    ],
)
def test_bad_kernels(unchecked, kernel_shape, outside, message):
    with pytest.raises(ValueError, match=message):
        over_offsets(jnp.zeros(kernel_shape), (5,), outside)


@pytest.mark.parametrize("grid_shape", [(1,), (2,), (5,), (1, 3), (3, 2), (2, 1, 3)], ids=str)
def test_from_offsets_to_pairs(grid_shape):
    where, n = oracle.positions(grid_shape), math.prod(grid_shape)
    by_offset = np.random.default_rng(0).normal(size=(2, n, *(2 * size - 1 for size in grid_shape))).astype(np.float32)
    pairs = np.asarray(jax.jit(by_pair, static_argnums=1)(by_offset, grid_shape))
    assert pairs.shape == (2, n, n)
    for t, s in np.ndindex(n, n):
        index = tuple(k - q + size - 1 for k, q, size in zip(where[s], where[t], grid_shape, strict=True))
        np.testing.assert_array_equal(pairs[:, t, s], by_offset[(slice(None), t, *index)])


@pytest.mark.parametrize("grid_shape", [(1,), (4,), (2, 3), (2, 1, 2)], ids=str)
def test_scores_of_keys(float64, grid_shape):
    """Values and gradients, number by number: A_ts = k_s . F_{t-s}."""
    rng, n, where = np.random.default_rng(1), math.prod(grid_shape), oracle.positions(grid_shape)
    x = {"key": rng.normal(size=(2, n, 2, 3))}
    x["encoding"] = rng.normal(size=(*(2 * size - 1 for size in grid_shape), 2, 3))
    weights = rng.normal(size=(2, 2, n, n))

    def loops(x):
        scores = np.zeros((2, 2, n, n, x["key"].shape[-1]), complex)
        for i, j, t, s, f in np.ndindex(2, 2, n, n, 3):
            index = tuple(q - k + size - 1 for k, q, size in zip(where[s], where[t], grid_shape, strict=True))
            scores[i, j, t, s] += x["key"][i, s, j, f] * x["encoding"][(*index, j, f)]
        return weights[..., None] * scores

    def loss(x):
        scores = weights * key_scores(**x, grid_shape=grid_shape)
        return scores.sum(), scores

    expected, expected_gradients = oracle.value_and_gradients(loops, x)
    gradients, scores = jax.jit(jax.grad(loss, has_aux=True))(jax.tree.map(jnp.asarray, x))
    np.testing.assert_allclose(scores, expected, rtol=1e-12, atol=1e-12)
    for name, gradient in expected_gradients.items():
        np.testing.assert_allclose(gradients[name], gradient, rtol=1e-12, atol=1e-12, err_msg=name)
