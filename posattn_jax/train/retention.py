"""Which checkpoints a run keeps."""

from collections.abc import Mapping
from typing import Any

Score = Mapping[str, Any]  # {"score": of an evaluation, "step": of the checkpoint}
LATEST = 2  # sound ones: should the last be damaged later, there is one more


def rank(score: Score) -> tuple[float, int]:
    """Checkpoints are ranked by score; of equals the first is the best."""
    return score["score"], -score["step"]


def best(scores: Mapping[int, Score]) -> int | None:
    """The step of the best evaluation."""
    return max(scores, key=lambda step: rank(scores[step]), default=None)


def from_best(scores: Mapping[int, Score], number: int) -> list[int]:
    """The best evaluation and those after it, `number` in all, or as many as there are."""
    first = best(scores)
    return [step for step in sorted(scores) if first is not None and step >= first][:number]


def to_average(scores: Mapping[int, Score], number: int) -> list[int]:
    """The best evaluation and those after it, `number` in all; where there are not as many, the last so many."""
    following = from_best(scores, number)
    return following if len(following) == number else sorted(scores)[-number:]


def of_evaluations(scores: Mapping[int, Score], number: int) -> set[int]:
    """What may yet be averaged: `number` evaluations from the best one on, and the last."""
    return {*from_best(scores, number), *sorted(scores)[-number:]}
