import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax.ops.attention import relative_attention
from posattn_jax.ops.attention.xla import loop, tiles
from tests.ops.attention.attention_suite import B, LocalSuite, make_inputs


class TestTiled(LocalSuite):
    """Small grids: one tile, or one group of them."""

    implementation = "tiled"


@pytest.mark.slow
@pytest.mark.parametrize("grid_shape, per_head", [((11,), True), ((5, 4), False), ((3, 2, 4), False)], ids=str)
def test_many_tiles_groups_and_trips(float64, monkeypatch, grid_shape, per_head):
    """Tiles of two queries, each a group of its own, that meet their keys in many steps."""
    monkeypatch.setattr(tiles, "TILE_QUERIES", 2)
    monkeypatch.setattr(tiles, "WINDOW_HALVES", dict.fromkeys((1, 2, 3), (1,)))
    monkeypatch.setattr(loop, "SCORE_BYTES", {"cpu": 1})
    mask = np.random.default_rng(2).random((B, math.prod(grid_shape))) < 0.6
    TestTiled().check_against_oracle(
        make_inputs(grid_shape, per_head=per_head), grid_shape, is_causal=True, key_mask=mask, span_mode="log_add"
    )
    TestTiled().check_against_oracle(make_inputs(grid_shape, batch=1), grid_shape, threshold=0.4)


def test_one_program_serves_every_span():
    shape = (16, 12)
    inputs = jax.tree.map(jnp.asarray, make_inputs(shape, dtype=np.float32))

    def total(x):
        outputs = relative_attention(**x, grid_shape=shape, implementation="tiled")
        return outputs.sum(), outputs

    differentiate = jax.jit(jax.grad(total, has_aux=True))
    reference = jax.jit(lambda x: relative_attention(**x, grid_shape=shape, implementation="reference"))
    for sigma in ((0.02, 0.03), (0.05, 0.3), (0.1, 0.1), (0.3, 0.2), (1.0, 1.0)):
        x = inputs | {"sigma": jnp.array(sigma)}
        gradients, outputs = differentiate(x)
        np.testing.assert_allclose(outputs, reference(x), rtol=1e-4, atol=1e-5)
        assert all(np.isfinite(gradient).all() for gradient in jax.tree.leaves(gradients))
    assert differentiate._cache_size() == 1


@pytest.mark.parametrize("grid_shape", [(1,), (7,), (100,), (1, 9), (13, 8), (2, 3, 1), (9, 9, 9)], ids=str)
@pytest.mark.parametrize("half", [0, 1, 5])
def test_a_tiling_covers_the_grid_and_the_span(grid_shape, half):
    """Every key within the half-span of a query lies in exactly one window that the query's tile meets."""
    for tiling, heads in tiles.tilings(grid_shape, 2, 6, 4, None):
        assert 6 % heads == 0
        assert all(
            m * g * t >= s for m, g, t, s in zip(tiling.groups, tiling.group, tiling.tile, grid_shape, strict=True)
        )
        reach = [min(half, size - 1) for size in grid_shape]
        for t, w, r, steps in zip(tiling.tile, tiling.window, reach, tiling.steps(reach), strict=True):
            assert steps * w >= t + 2 * r > (steps - 1) * w


@pytest.mark.slow
def test_memory_grows_with_the_positions_alone():
    """Temporary memory of forward and backward at twice the side is about four times as much."""

    def temporary_bytes(side):
        features = jax.ShapeDtypeStruct((1, side * side, 2, 8), jnp.float32)
        inputs = {"query": features, "key": features, "value": features}
        inputs["relative_encoding"] = jax.ShapeDtypeStruct((2 * side - 1, 2 * side - 1, 2, 8), jnp.float32)
        inputs["sigma"] = jax.ShapeDtypeStruct((2,), jnp.float32)

        def loss(x):
            return relative_attention(**x, grid_shape=(side, side), implementation="tiled").sum()

        return jax.jit(jax.grad(loss)).lower(inputs).compile().memory_analysis().temp_size_in_bytes

    assert temporary_bytes(96) < 4.5 * temporary_bytes(48)
