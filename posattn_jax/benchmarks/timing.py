"""Compile time, memory and run time of programs, each measured apart, the run times interleaved."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

MIN_ROUNDS = 3


class Skipped(Exception):
    """Why a program is not timed."""


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled program and its arguments, run once.

    `compile_seconds` includes tracing; `temp_bytes` is what the compiler reserves beside arguments and results.
    """

    run: Callable[[], Any]
    compile_seconds: float
    temp_bytes: int
    warm_up_seconds: float


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A compiled function, what a `Program` makes its runs of."""

    call: Callable[..., Any]
    compile_seconds: float
    temp_bytes: int

    def program(self, call: Callable[[], Any]) -> Program:
        """A program whose runs wait for the results of `call`, run once.

        Raises:
          Skipped: it failed.
        """

        def run():
            return jax.block_until_ready(call())

        with failures_told():
            return Program(run, self.compile_seconds, self.temp_bytes, seconds(run))


def compile_ahead(function: Callable, arguments: tuple, memory_limit_gib: float) -> Compiled:
    """Compiles `function`, which may be jitted already, for arguments such as these.

    Raises:
      Skipped: it would need more temporary memory than the limit, or it failed.
    """
    with failures_told():
        started = time.perf_counter()
        jitted: Any = function if hasattr(function, "lower") else jax.jit(function)
        compiled = jitted.lower(*arguments).compile()
        compile_seconds = time.perf_counter() - started
        temp_bytes = compiled.memory_analysis().temp_size_in_bytes
    if temp_bytes > memory_limit_gib * 2**30:
        raise Skipped(f"needs {temp_bytes / 2**30:.3g} GiB, more than --memory_limit_gib={memory_limit_gib:g}")
    return Compiled(compiled, compile_seconds, temp_bytes)


def prepare(function: Callable, arguments: tuple, memory_limit_gib: float) -> Program:
    """Compiles `function` and runs it once, unless it would need more temporary memory than the limit.

    Raises:
      Skipped: it needs more memory, or it failed.
    """
    compiled = compile_ahead(function, arguments, memory_limit_gib)
    return compiled.program(lambda: compiled.call(*arguments))


@contextlib.contextmanager
def failures_told() -> Iterator[None]:
    """Skipped, with the reason, instead of any failure: it leaves the others' figures."""
    try:
        yield
    except Exception as error:
        reason = (str(error).strip() or "no message").splitlines()[0]
        raise Skipped(reason if isinstance(error, ValueError) else f"{type(error).__name__}: {reason}") from error


def seconds(run: Callable[[], Any]) -> float:
    """The time of one run, which must wait for its results."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def interleave(programs: list[Program], repeats: int, budget_seconds: float) -> list[list[float]]:
    """Rounds in which every program runs once, so that what slows the machine down for a while slows all of them.

    Each round has an order of its own, drawn at random, for a program leaves the caches and the allocator in a state
    that the next one meets. There are `repeats` rounds, fewer where they would exceed the budget, but
    at least three.

    Returns:
      The seconds of every run, a list for every program.
    """
    a_round = sum(program.warm_up_seconds for program in programs)
    rounds = min(repeats, max(MIN_ROUNDS, int(budget_seconds / a_round))) if programs else 0
    times: list[list[float]] = [[] for _ in programs]
    order = np.random.default_rng(0)
    for _ in range(rounds):
        for turn in order.permutation(len(programs)):
            times[turn].append(seconds(programs[turn].run))
    return times


def one_pass(attend: Callable, backward: bool) -> Callable:
    """(arrays, cotangent) -> attend(arrays), or that and (the gradients of all arrays,)."""

    def forward(arrays, _):
        return attend(arrays)

    def forward_backward(arrays, cotangent):
        outputs, pull_back = jax.vjp(attend, arrays)
        return outputs, pull_back(cotangent)

    return forward_backward if backward else forward
