"""What is timed on a device: functions of arrays and a cotangent, and runs of several calls."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from posattn_jax.benchmarks.shapes import THRESHOLD, Point
from posattn_jax.benchmarks.timing import one_pass, seconds
from posattn_jax.ops.attention import relative_attention


@dataclasses.dataclass(frozen=True)
class Calls:
    """`run` starts a program this many times, and returns the result of the last."""

    run: Callable[[], Any]
    calls: int


def make_function(implementation: str, point: Point, backward: bool) -> Callable:
    """(arrays, cotangent of the outputs) -> outputs, or outputs and the gradients of all arrays."""
    fixed: dict[str, Any] = {"grid_shape": point.grid_shape, "threshold": THRESHOLD, "span_bound": point.half}
    fixed["implementation"] = implementation
    return one_pass(lambda arrays: relative_attention(**arrays, **fixed), backward)


def make_plain_function(backward: bool) -> Callable:
    """The same for JAX's flash attention of all pairs, which knows no positions; gradients of query, key, value."""

    def attend(arrays):
        from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention

        heads_first = (arrays[name].swapaxes(1, 2) for name in ("query", "key", "value"))
        return flash_attention(*heads_first, sm_scale=1 / math.sqrt(arrays["query"].shape[-1])).swapaxes(1, 2)

    return one_pass(attend, backward)


def in_a_row(call: Callable[[], Any], wait: Callable[[Any], Any], at_least: float = 0.02, most: int = 50) -> Calls:
    """Runs of so many calls that starting the first and waiting for the last does not count: for accelerators.

    Args:
      call: starts a program and returns its result.
      wait: until that is there.
      at_least: seconds that a run takes.
      most: calls in a run.
    """
    wait(call())
    calls = min(most, max(1, math.ceil(at_least / seconds(lambda: wait(call())))))

    def run():
        result = call()
        for _ in range(calls - 1):
            result = call()
        return result

    return Calls(run, calls)
