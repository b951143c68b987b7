"""Static bounds of the learned spans, chosen on the host, for devices on which a loop of run-time length is slow.

A program is compiled for every set of bounds that the spans come to: few, since bounds come in sizes (see
`ops.span.bound_for`). They are enlarged before a span exceeds them: a bound leaves a position of room, and Adam moves
a span by far less in the two updates that pass until a change is seen. If it ever were exceeded, the loss would be NaN
and the run would stop.
"""

from typing import Any

import jax
import numpy as np

from posattn_jax.ops.span import bound_for
from posattn_jax.tasks.task import Task
from posattn_jax.train.seed_map import ALONE, SeedMap

Bounds = tuple[tuple[int, ...], ...]


class SpanBounds:
    """The bounds of every block, following the parameters with a delay of one update.

    Vmapped seeds share them: they are those of the largest spans.
    """

    def __init__(self, task: Task, params: Any, seeds: SeedMap = ALONE):
        self._half_spans = jax.jit(seeds.map(task.half_spans))
        self._seen = self._half_spans(params)
        self.value: Bounds = ()
        self.follow(params)

    def follow(self, params: Any) -> None:
        """Looks at the spans of the update before `params`, which are known without waiting for it."""
        halves = [tuple(np.atleast_2d(half).max(0).astype(int).tolist()) for half in self._seen]
        previous = self.value or [None] * len(halves)
        self.value = tuple(bound_for(half, old) for half, old in zip(halves, previous, strict=True))
        self._seen = self._half_spans(params)
