"""Which checkpoints a run keeps."""

from collections.abc import Mapping
from typing import Any

Score = Mapping[str, Any]  # {"score": of an evaluation, "step": of the checkpoint}
LATEST = 2  # undamaged ones: if the last is damaged later, there is one more


def rank(score: Score) -> tuple[float, int]:
    """The sort key of checkpoints: the highest score is the best; of equal scores, the earliest."""
    return score["score"], -score["step"]


def best(scores: Mapping[int, Score]) -> int | None:
    """The step of the best evaluation; None if there is none."""
    return max(scores, key=lambda step: rank(scores[step]), default=None)


def from_best(scores: Mapping[int, Score], number: int) -> list[int]:
    """The best evaluation and those after it, `number` in all, or as many as there are."""
    first = best(scores)
    return [step for step in sorted(scores) if first is not None and step >= first][:number]


def to_average(scores: Mapping[int, Score], number: int) -> list[int]:
    """The best evaluation and those after it, `number` in all; if they are fewer, the last `number` evaluations."""
    following = from_best(scores, number)
    return following if len(following) == number else sorted(scores)[-number:]


def of_evaluations(scores: Mapping[int, Score], number: int) -> set[int]:
    """The evaluations that may still be averaged: `number` from the best one on, and the last `number`."""
    return {*from_best(scores, number), *sorted(scores)[-number:]}
