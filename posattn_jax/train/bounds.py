"""Static bounds of the learned spans, chosen on the host, for devices on which a loop of run-time length is slow.

A program is compiled for every set of bounds that occurs. These are few, because bounds are rounded up to a few sizes
(see `ops.span.bound_for`). A bound is enlarged before a span exceeds it: it leaves room for one position, and a change
of the span is seen two updates late, in which Adam moves the span by far less than that. If a bound were exceeded all
the same, the loss would be NaN and the run would stop.
"""

from typing import Any

import jax
import numpy as np

from posattn_jax.ops.span import bound_for
from posattn_jax.tasks.task import Task
from posattn_jax.train.seed_map import ALONE, SeedMap

Bounds = tuple[tuple[int, ...], ...]


class SpanBounds:
    """The bounds of every block. They follow the parameters with a delay of one update.

    Vmapped seeds share the bounds of their largest spans.
    """

    def __init__(self, task: Task, params: Any, seeds: SeedMap = ALONE):
        self._half_spans = jax.jit(seeds.map(task.half_spans))
        self._seen = self._half_spans(params)
        self.value: Bounds = ()
        self.follow(params)

    def follow(self, params: Any) -> None:
        """Updates the bounds by the spans of the previous call's `params`, which are known without waiting."""
        halves = [tuple(np.atleast_2d(half).max(0).astype(int).tolist()) for half in self._seen]
        previous = self.value or [None] * len(halves)
        self.value = tuple(bound_for(half, old) for half, old in zip(halves, previous, strict=True))
        self._seen = self._half_spans(params)
