"""Which checkpoints are kept for an average, and which are averaged."""

import types

import numpy as np
import pytest

from posattn_jax.train.averaging import average
from posattn_jax.train.checkpoint import Checkpoints, ToAverage


def infos(scores):
    """Checkpoints at steps 1, 2, ...; a score of None is one between evaluations."""
    return [
        types.SimpleNamespace(step=i, metrics=None if score is None else {"score": score, "step": i})
        for i, score in enumerate(scores, start=1)
    ]


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
    preserved = ToAverage(3).should_preserve(infos(scores), context=None)
    assert [i for i, keep in enumerate(preserved, start=1) if keep] == kept


@pytest.mark.parametrize(
    "best, number, expected",
    [(20, 3, [20, 30, 40]), (30, 3, [30, 40, 50]), (40, 3, [30, 40, 50]), (50, 9, [10, 20, 30, 40, 50])],
)
def test_the_best_and_following_or_else_the_last(monkeypatch, best, number, expected):
    manager = types.SimpleNamespace(all_steps=lambda: [50, 10, 30, 20, 40, 45], metrics=lambda step: step % 10 == 0)
    checkpoints = Checkpoints.__new__(Checkpoints)
    checkpoints._manager = manager
    monkeypatch.setattr(Checkpoints, "best_step", lambda self: best)
    assert checkpoints.steps_to_average(number) == expected


def test_means_are_of_float64(unchecked):
    """Summed in float32, the small one would be lost beside the large ones."""
    steps = {1: 2.0**25, 2: 1.0, 3: -(2.0**25)}
    stored = types.SimpleNamespace(read_params=lambda step: {"x": np.array([steps[step]], np.float32)})
    mean = average(stored, [1, 2, 3])
    np.testing.assert_allclose(mean["x"], [1 / 3], rtol=1e-7)
    assert mean["x"].dtype == np.float32
