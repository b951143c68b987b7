import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posattn_jax.ops.attention import relative_attention
from posattn_jax.ops.attention.xla import loop, rows
from posattn_jax.ops.grid import relative_offsets
from tests.ops.attention.attention_suite import AllPairsSuite, B, H, make_inputs
from tests.support.slow import slow


class TestDense(AllPairsSuite):
    """Rows at once, without a loop: the grids are small."""

    implementation = "dense"


@pytest.mark.slow
@pytest.mark.parametrize(
    "grid_shape, span_mode, per_head",
    [
        ((5,), "multiply", True),
        ((3, 2), "log_add", False),
        ((2, 1, 3), "multiply", True),
        slow((5,), "log_add", False),
        slow((3, 2), "multiply", True),
        slow((2, 1, 3), "log_add", False),
    ],
    ids=str,
)
def test_looped_over_short_rows(float64, monkeypatch, grid_shape, span_mode, per_head):
    """One row of two queries of one head a step, the last of the first dimension padded."""
    monkeypatch.setattr(rows, "ROW_QUERIES", 2)
    monkeypatch.setattr(loop, "SCORE_BYTES", {"cpu": 1})
    mask = np.random.default_rng(2).random((B, math.prod(grid_shape))) < 0.6
    inputs = make_inputs(grid_shape, per_head=per_head)
    TestDense().check_against_oracle(inputs, grid_shape, is_causal=True, key_mask=mask, span_mode=span_mode)


@given(run=st.integers(1, 6), line=st.integers(1, 4), first=st.integers(1, 6))
@settings(deadline=None, max_examples=6)
def test_shift_takes_the_offset_of_each_key(run, line, first):
    cut = rows.Rows((first, line), (first, line), run, 1)
    n, r = first * line, (first + run - 1) * line
    by_offset = np.random.default_rng(0).normal(size=(2, run, r)).astype(np.float32)
    by_key = jax.jit(cut.shift)(by_offset)
    toeplitz = jax.jit(cut.toeplitz)
    for t in range(run):
        start = (run - 1 - t) * line
        np.testing.assert_array_equal(by_key[:, t], by_offset[:, t, start : start + n])
        np.testing.assert_array_equal(toeplitz(by_offset[:, 0])[:, t], by_offset[:, 0, start : start + n])
    (transposed,) = jax.jit(jax.linear_transpose(cut.shift, by_offset))(by_key)
    np.testing.assert_array_equal(jax.jit(cut.unshift)(by_key), transposed)


@pytest.mark.parametrize("grid_shape, run, at_once", [((7,), 3, 2), ((5, 3), 2, 4), ((2, 3, 2), 2, 5)], ids=str)
def test_rows_cover_the_grid(grid_shape, run, at_once):
    """Every query is in its place, and its row's window holds the offsets that the row meets."""
    cut = rows.Rows(grid_shape, grid_shape, run, at_once)
    x = np.arange(2 * 3 * math.prod(grid_shape) * 4.0, dtype=np.float32).reshape(2, 3, *grid_shape, 4)
    np.testing.assert_array_equal(jax.jit(lambda x: cut.grid(cut.queries(x)))(x), x)
    where = np.moveaxis(np.indices(grid_shape, np.float32), 0, -1)[None, None]
    queries = np.asarray(jax.jit(cut.queries)(where))[:, 0, 0]  # [steps i t p]
    met_from = jax.jit(lambda offsets, starts: cut.toeplitz(cut.bands(cut.pad(offsets), starts)))
    offsets = jnp.moveaxis(relative_offsets(grid_shape), -1, 0)
    keys = np.indices(grid_shape).reshape(len(grid_shape), -1).T
    for step, starts in enumerate(cut.starts):
        met = np.asarray(met_from(offsets, starts))  # [p i t s]
        for i, start in enumerate(starts):
            for t in range(run):
                query = start + np.array([t, *(0 for _ in grid_shape[1:])])
                if query[0] < grid_shape[0]:
                    np.testing.assert_array_equal(met[:, i, t].T, keys - query)
                    if step * at_once + i < cut.runs * cut.line:
                        np.testing.assert_array_equal(queries[step, i, t], query)


def test_gradients_with_dropout_and_of_the_weights(float64, monkeypatch):
    """In one step, and in four."""
    grid_shape, rng = (5, 4), np.random.default_rng(1)
    inputs = jax.tree.map(jnp.asarray, make_inputs(grid_shape, per_head=True))
    n = math.prod(grid_shape)
    cotangents = rng.normal(size=inputs["value"].shape), rng.normal(size=(B, H, n, n))
    options = {"dropout_rate": 0.4, "dropout_rng": jax.random.key(1), "return_weights": True}

    def gradients(implementation):
        def loss(x):
            results = relative_attention(**x, grid_shape=grid_shape, implementation=implementation, **options)
            return sum((x * cotangent).sum() for x, cotangent in zip(results, cotangents, strict=True))

        return jax.jit(jax.grad(loss))(inputs)

    expected, at_once = gradients("reference"), gradients("dense")
    monkeypatch.setattr(rows, "ROW_QUERIES", 3)
    monkeypatch.setattr(loop, "SCORE_BYTES", {"cpu": 1})
    for found in (at_once, gradients("dense")):
        for name, gradient in found.items():
            np.testing.assert_allclose(gradient, expected[name], rtol=1e-9, atol=1e-10, err_msg=name)


def test_rows_in_groups_equal_rows_at_once(monkeypatch):
    inputs = jax.tree.map(jnp.asarray, make_inputs((7, 5), dtype=np.float32))

    def attend():
        return jax.jit(lambda x: relative_attention(**x, grid_shape=(7, 5)))(inputs)

    at_once = attend()
    row_bytes = B * H * 7 * 35 * 4
    monkeypatch.setattr(loop, "SCORE_BYTES", {"cpu": 2 * row_bytes})
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
