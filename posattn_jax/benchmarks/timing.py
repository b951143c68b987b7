"""Measures the compile time and memory of each program, and the run times of several programs by turns."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

MIN_ROUNDS = 3


class Skipped(Exception):
    """The reason why a program is not timed, or not profiled."""


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled program with its arguments, which has run once.

    `compile_seconds` includes tracing. `temp_bytes` is the memory that the compiler reserves besides arguments and
    results. `warm_up_seconds` is the time of the first run.
    """

    run: Callable[[], Any]
    compile_seconds: float
    temp_bytes: int
    warm_up_seconds: float


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A compiled function, from which a `Program` is made."""

    call: Callable[..., Any]
    compile_seconds: float
    temp_bytes: int

    def program(self, call: Callable[[], Any]) -> Program:
        """A program whose runs wait for the results of `call`; it runs once here.

        Raises:
          Skipped: the run failed.
        """

        def run():
            return jax.block_until_ready(call())

        with failures_told():
            return Program(run, self.compile_seconds, self.temp_bytes, seconds(run))


def compile_ahead(function: Callable, arguments: tuple, memory_limit_gib: float) -> Compiled:
    """Compiles `function`, which may be jitted already, for arguments of these shapes.

    Raises:
      Skipped: the program would need more temporary memory than the limit, or compilation failed.
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
      Skipped: the program would need more memory, or it failed.
    """
    compiled = compile_ahead(function, arguments, memory_limit_gib)
    return compiled.program(lambda: compiled.call(*arguments))


@contextlib.contextmanager
def failures_told() -> Iterator[None]:
    """Turns any failure into `Skipped` with the reason, so that other programs can still be measured."""
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
    """Runs every program once per round, so that a temporary slowdown of the machine affects all of them.

    The order within each round is random, because a program changes the state of caches and allocator for the next
    one. There are `repeats` rounds, or fewer if they would exceed the budget, but at least three.

    Returns:
      The seconds of every run, in a list for every program.
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
    """A function (arrays, cotangent) -> attend(arrays), or a pair of that and (the gradients of all arrays,)."""

    def forward(arrays, _):
        return attend(arrays)

    def forward_backward(arrays, cotangent):
        outputs, pull_back = jax.vjp(attend, arrays)
        return outputs, pull_back(cotangent)

    return forward_backward if backward else forward
