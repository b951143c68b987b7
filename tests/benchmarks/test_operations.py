"""The count of floating-point operations, and of what a model needs, against counts by hand."""

import itertools

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from configs import digits
from configs.lib.common import ENCODING
from posattn_jax.benchmarks import operations
from posattn_jax.benchmarks.operations import product_flops, update_flops
from posattn_jax.config import experiment
from posattn_jax.run.benchmark import flops_of
from posattn_jax.system.files import value_at

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


def test_products_loops_and_choices():
    a, b = jnp.ones((3, 4, 5)), jnp.ones((3, 5, 6))
    product = 2 * 3 * 4 * 5 * 6
    assert product_flops(lambda a, b: jnp.tanh(a @ b) + 1, a, b) == product
    assert product_flops(jax.jit(lambda a, b: jax.checkpoint(jnp.matmul)(a, b)), a, b) == product
    assert product_flops(lambda a, b: lax.scan(lambda c, _: (c, a @ b), 0, length=7), a, b) == 7 * product
    assert product_flops(lambda a, b: lax.cond(a.any(), lambda: a @ b, lambda: a @ b @ b.mT @ b), a, b) == 3 * product
    assert product_flops(lambda n: lax.fori_loop(0, n, lambda i, c: c + i, 0), 5) == 0
    with pytest.raises(ValueError, match="known only at run time"):
        product_flops(lambda a, n: lax.fori_loop(0, n, lambda _, c: c @ c, a), jnp.ones((2, 2)), 5)


def test_convolutions():
    """A multiplication a weight of the kernel and output position, of as many inputs as a group has."""
    images, kernel = jnp.ones((2, 6, 9, 9)), jnp.ones((8, 3, 5, 5))

    def convolve(images, kernel):
        return lax.conv_general_dilated(images, kernel, (1, 1), "SAME", feature_group_count=2)

    assert product_flops(convolve, images, kernel) == 2 * (2 * 8 * 9 * 9) * (3 * 5 * 5)


def test_an_update_of_a_classifier():
    """Digits at 4 x 4, of one channel and ten classes."""
    config = digits.get_config("tiny")
    model = config.model
    source = experiment.load_sources(config)["train"]
    b, n, r, c = config.train.batch_size, 16, 49, model.width
    siren = [2, *[c] * (value_at(config.to_dict(), ENCODING)["num_layers"] - 1), c]
    scores_and_values = 3 * 2 * b * n * n * c
    projections = 4 * 2 * b * n * c * c
    encoding = 2 * r * sum(i * o for i, o in itertools.pairwise(siren))
    feed_forward = 2 * 2 * b * n * c * model.block.mlp_dim
    around = 2 * b * n * c + 2 * b * c * (c + 10)
    forward = scores_and_values + projections + encoding + feed_forward + around
    assert model.num_blocks == 1
    assert flops_of(config, source) == 3 * config.train.accumulation_steps * forward


def test_backward_is_twice_forward():
    x = jnp.ones((4, 8))
    assert update_flops(lambda p, x: (x @ p).sum(), jnp.ones((8, 8)), x) == 3 * 2 * 4 * 8 * 8
