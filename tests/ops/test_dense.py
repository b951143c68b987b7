import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posattn_jax.ops.attention import dense, relative_attention
from tests.ops.attention_suite import AllPairsSuite, B, H, make_inputs


class TestDense(AllPairsSuite):
    """Rows at once, without a loop: the grids are small."""

    implementation = "dense"


@pytest.mark.parametrize("grid_shape", [(5,), (3, 2), (2, 1, 3)], ids=str)
def test_looped_over_short_rows(float64, monkeypatch, grid_shape):
    """One row of two queries a trip, the last of a line padded."""
    monkeypatch.setattr(dense, "MAX_RUN", 2)
    monkeypatch.setattr(dense, "SCORE_BYTES", {"cpu": 1})
    mask = np.random.default_rng(2).random((B, math.prod(grid_shape))) < 0.6
    TestDense().check_against_oracle(make_inputs(grid_shape, per_head=True), grid_shape, is_causal=True, key_mask=mask)


@given(t=st.integers(1, 6), x=st.integers(1, 4), s=st.integers(1, 6))
@settings(deadline=None, max_examples=12)
def test_shift_takes_the_offset_of_each_key(t, x, s):
    by_offset = np.random.default_rng(0).normal(size=(2, t, x, s + t - 1))
    by_key = dense.shift(jnp.asarray(by_offset, jnp.float32))
    for i in range(t):
        np.testing.assert_allclose(by_key[:, i], by_offset[:, i, :, t - 1 - i : t - 1 - i + s], rtol=1e-6)


def test_rows_in_groups_equal_rows_at_once(monkeypatch):
    inputs = jax.tree.map(jnp.asarray, make_inputs((7, 5), dtype=np.float32))

    def attend():
        return jax.jit(lambda x: relative_attention(**x, grid_shape=(7, 5)))(inputs)

    at_once = attend()
    row_bytes = B * H * 5 * 35 * 4
    monkeypatch.setattr(dense, "SCORE_BYTES", {"cpu": 3 * row_bytes})
    np.testing.assert_allclose(attend(), at_once, rtol=1e-5, atol=1e-6)


def test_no_tensor_of_all_pairs_and_features():
    """Forward and backward at 32 x 32 need a fraction of the reference's positions [N, N, h, d]."""
    n, h, d = 32 * 32, 2, 16
    features = jax.ShapeDtypeStruct((1, n, h, d), jnp.float32)
    inputs = {"query": features, "key": features, "value": features}
    inputs["relative_encoding"] = jax.ShapeDtypeStruct((63, 63, h, d), jnp.float32)

    def temporary_bytes(implementation):
        def loss(x):
            return relative_attention(**x, grid_shape=(32, 32), implementation=implementation).sum()

        return jax.jit(jax.grad(loss)).lower(inputs).compile().memory_analysis().temp_size_in_bytes

    all_pairs = n * n * h * d * 4
    assert temporary_bytes("reference") > all_pairs
    assert temporary_bytes("dense") < all_pairs / 3
