"""Attention of queries on a grid of their own: against the oracle's loops, and what it is of equal grids."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax.ops import grid
from posattn_jax.ops.attention import relative_attention
from tests import oracle
from tests.ops.attention.attention_suite import D, H, make_inputs
from tests.support.slow import slow


def make_two(query_grid_shape, grid_shape, **fields):
    """Inputs as `make_inputs`, with a bias of offsets too."""
    inputs, rng = make_inputs(grid_shape, batch=1, **fields), np.random.default_rng(5)
    shape = grid.relative_shape(grid_shape, query_grid_shape)
    inputs["query"] = rng.normal(size=(1, grid.num_positions(query_grid_shape), H, D))
    inputs["relative_encoding"] = rng.normal(size=(*shape, H, D))
    return inputs | {"relative_bias": rng.normal(size=(*shape, H))}


@pytest.mark.parametrize(
    "query_grid_shape, grid_shape, fields, options",
    [
        ((2,), (4,), {"per_head": True}, {"threshold": 0.3}),
        ((3, 1), (2, 3), {"covariance": "full"}, {"span_mode": "log_add"}),
        slow((7,), (5,), {}, {"reference_shape": (3,)}),
        slow((4,), (1,), {}, {}),
        slow((1, 2, 3), (2, 1, 2), {}, {"threshold": 0.0}),
        slow((2, 5), (4, 3), {"span": False}, {"scale": 0.7}),
    ],
    ids=str,
)
def test_values_and_gradients(float64, query_grid_shape, grid_shape, fields, options):
    inputs, rng = make_two(query_grid_shape, grid_shape, **fields), np.random.default_rng(6)
    weights = rng.normal(size=inputs["query"].shape)
    sizes = grid.num_positions(query_grid_shape), grid.num_positions(grid_shape)
    inputs["bias"] = rng.normal(size=(1, H, *sizes))
    masks = {"mask": rng.random((1, 1, *sizes)) < 0.8, "key_mask": rng.random((1, sizes[1])) < 0.9}
    options = options | {"query_grid_shape": query_grid_shape}

    def weighted(x):
        return weights[..., None] * oracle.attention(x, grid_shape, **options, **masks)

    def loss(x):
        given = {name: jnp.asarray(mask) for name, mask in masks.items()}
        outputs = weights * relative_attention(**x, grid_shape=grid_shape, **options, **given)
        return outputs.sum(), outputs

    expected, expected_gradients = oracle.value_and_gradients(weighted, inputs)
    gradients, outputs = jax.jit(jax.grad(loss, has_aux=True))(jax.tree.map(jnp.asarray, inputs))
    np.testing.assert_allclose(outputs, expected, rtol=1e-10, atol=1e-10)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, expected_gradients[name], rtol=1e-10, atol=1e-10, err_msg=name)


@pytest.mark.parametrize("sizes", [((2,), (4,)), ((8, 3), (16, 5)), ((1, 1, 2), (3, 1, 5))], ids=str)
def test_offsets(sizes):
    """Those of the oracle's fractions, of every pair and each once."""
    queries, keys = sizes
    expected = [
        [[float(o) for o in oracle.offset_of(t, s, keys, queries)] for s in oracle.positions(keys)]
        for t in oracle.positions(queries)
    ]
    np.testing.assert_array_equal(grid.pair_offsets(keys, queries), expected)
    table = grid.relative_offsets(keys, queries)
    assert table.shape == (*map(len, oracle.lines_of(keys, queries)), len(keys))
    assert table.shape[:-1] == grid.relative_shape(keys, queries)
    np.testing.assert_allclose(grid.toeplitz(table, keys, queries), expected, rtol=1e-6)


def test_a_query_of_half_the_resolution_stands_between_two_keys():
    np.testing.assert_array_equal(
        grid.pair_offsets((4,), (2,))[..., 0], [[-0.5, 0.5, 1.5, 2.5], [-2.5, -1.5, -0.5, 0.5]]
    )


@pytest.mark.parametrize("shape", [slow((5,)), (2, 3)], ids=str)
def test_equal_grids_are_one(shape):
    np.testing.assert_array_equal(grid.pair_offsets(shape), grid.toeplitz(grid.relative_offsets(shape), shape))
    np.testing.assert_array_equal(grid.relative_offsets(shape, shape), grid.relative_offsets(shape))
    inputs = jax.tree.map(jnp.asarray, make_inputs(shape, dtype=np.float32))
    options = {"grid_shape": shape, "is_causal": True, "implementation": "tiled"}
    attend = jax.jit(
        lambda inputs, queries: relative_attention(**inputs, **options, query_grid_shape=queries), static_argnums=1
    )
    np.testing.assert_array_equal(attend(inputs, shape), attend(inputs, None))


@pytest.mark.parametrize(
    "change, message",
    [
        (
            {"implementation": "tiled"},
            r'query_grid_shape=\(2,\), .*implementation="tiled"',
        ),
        ({"implementation": "factorised"}, 'implementation="factorised"'),
        ({"is_causal": True}, "does not support is_causal"),
        ({"segment_ids": np.zeros((1, 4), np.int32)}, "does not support segment_ids"),
        ({"dilation": (2,)}, "does not support dilation"),
        ({"span_bound": (3,)}, "does not support span_bound"),
        ({"query_grid_shape": (2, 1)}, r"query_grid_shape=\(2, 1\): .*grid_shape=\(4,\)"),
        (
            {"query_grid_shape": (3,)},
            r"query .*: .*\(1, 3, 2, 2\) .*query_grid",
        ),
    ],
)
def test_what_is_of_one_grid_is_refused(unchecked, change, message):
    inputs = jax.tree.map(jnp.asarray, make_two((2,), (4,)))
    options = {"grid_shape": (4,), "query_grid_shape": (2,)} | change
    with pytest.raises(ValueError, match=message) as raised:
        relative_attention(**inputs, **options)
    assert "\n" not in str(raised.value)
