"""The count of floating-point operations, against counts by hand."""

import jax
import jax.numpy as jnp
import pytest

from posattn_jax.benchmarks import operations

X, W = jnp.ones((3, 4)), jnp.ones((4, 5))


@pytest.mark.parametrize(
    "function, expected",
    [
        (lambda x, w: x @ w, 2 * 3 * 4 * 5),
        (lambda x, w: jax.jit(lambda x: x @ w)(x), 2 * 3 * 4 * 5),
        (lambda x, w: jnp.einsum("bt,bs->bts", x, x), 3 * 4 * 4 * 2),
        (lambda x, w: jnp.exp(x).reshape(4, 3).T, 12),
        (lambda x, w: jnp.sum(x), 12),
        (lambda x, w: jax.lax.scan(lambda c, _: (c * 2, None), x, None, length=7)[0], 7 * 12),
        (lambda x, w: jax.lax.map(lambda row: row @ w, x), 3 * 2 * 4 * 5),
        (lambda x, w: jax.lax.fori_loop(0, 7, lambda _, c: c + 1, x), 7 * 12),
        (lambda x, w: jax.lax.cond(True, jnp.sin, lambda x: x, x), 12),
        (lambda x, w: jax.lax.conv(jnp.ones((1, 2, 8)), jnp.ones((3, 2, 3)), (1,), "VALID"), 2 * 3 * 6 * 2 * 3),
        (lambda x, w: jnp.arange(12).reshape(3, 4) + 1, 0),
    ],
    ids=["matmul", "inside", "outer", "elementwise", "sum", "scan", "map", "fori", "cond", "convolution", "integers"],
)
def test_counts(function, expected):
    assert operations.count(function, X, W) == expected


def test_gradients_of_a_product_are_two_products():
    forward = operations.count(lambda w: X @ w, W)
    assert operations.count(jax.grad(lambda w: (X @ w).sum()), W) >= forward
    assert operations.count(jax.grad(lambda xw: (xw[0] @ xw[1]).sum()), (X, W)) >= 2 * forward


def test_trips_known_only_at_run_time_are_refused():
    with pytest.raises(ValueError, match="known only as it runs"):
        operations.count(lambda n: jax.lax.fori_loop(0, n, lambda _, c: c + 1.0, 0.0), jnp.int32(3))
