"""Which checkpoints are kept for an average, and which are averaged."""

import types

import numpy as np
import pytest

from posattn_jax.train import checkpoint
from posattn_jax.train.pretrained import average


def by_step(scores):
    """Of the checkpoints at steps 1, 2, ...; a score of None is one between evaluations, which has none."""
    return {i: {"score": score, "step": i} for i, score in enumerate(scores, start=1) if score is not None}


@pytest.mark.parametrize(
    "scores, kept",
    [
        ([], []),
        ([None], []),
        ([1.0], [1]),
        ([1.0, 3.0, 2.0, 2.5, 2.0, 1.0, 1.0, 1.0], [2, 3, 4, 6, 7, 8]),
        ([1.0, 3.0, None, 2.0, 2.5, 2.0, None], [2, 4, 5, 6]),
        ([3.0, 3.0, 1.0], [1, 2, 3]),
        ([0.0, 1.0, 2.0, 3.0], [2, 3, 4]),
    ],
)
def test_what_may_be_averaged_is_kept(scores, kept):
    assert sorted(checkpoint.of_evaluations(by_step(scores), 3)) == kept


@pytest.mark.parametrize(
    "best, number, expected",
    [(20, 3, [20, 30, 40]), (30, 3, [30, 40, 50]), (40, 3, [30, 40, 50]), (50, 9, [10, 20, 30, 40, 50])],
)
def test_the_best_and_following_or_else_the_last(best, number, expected):
    scores = {step: {"score": float(step == best), "step": step} for step in (50, 10, 30, 20, 40)}
    assert checkpoint.best(scores) == best
    assert checkpoint.to_average(scores, number) == expected


def test_means_are_of_float64(unchecked):
    """Summed in float32, the small one would be lost next to the large ones."""
    steps = {1: 2.0**25, 2: 1.0, 3: -(2.0**25)}
    stored = types.SimpleNamespace(read_params=lambda step: {"x": np.array([steps[step]], np.float32)})
    mean = average(stored, [1, 2, 3])
    np.testing.assert_allclose(mean["x"], [1 / 3], rtol=1e-7)
    assert mean["x"].dtype == np.float32
