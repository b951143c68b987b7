"""Times one case: our implementations, and attention without positions, each against float64."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.device.cases import Timing
from benchmarks.device.exact import attend_exactly, judged
from benchmarks.device.programs import in_a_row, make_function, make_plain_function
from benchmarks.device.record import Clock, Record
from posattn_jax.axes import Array
from posattn_jax.benchmarks import table
from posattn_jax.benchmarks.roofline import Rates, work
from posattn_jax.benchmarks.shapes import make_inputs
from posattn_jax.benchmarks.timing import Program, Skipped, compile_ahead, failures_told, interleave

TIMED = ("fused", "tiled", "dense")
PLAIN = "flash"  # JAX's own attention of all pairs, which they are compared with
PASSES = tuple(table.PASSES)

# How many times the first takes as long as the second.
RATIOS = (
    ("fused", "tiled"),
    ("fused", "flash"),
    ("fused", "floor"),
    ("tiled", "dense"),
    ("tiled", "floor"),
)

# Of |x - exact| / |exact|: a TPU multiplies float32 in bfloat16 by default.
TOLERANCE = 5e-2

REPEATS, SECONDS = 20, 3.0


def is_complete(record: Record) -> bool:
    """Whether nothing of a case is left to measure."""
    return all({*TIMED, PLAIN} <= record.results(name).keys() for name in PASSES)


def measure(case: Timing, record: Record, clock: Clock, rates: Rates, memory_limit_gib: float) -> None:
    """Measures what the record does not have yet, until the time is spent."""
    add_floors(case, record, rates)
    point = case.point
    arrays = make_inputs(point, case.batch, case.heads, case.head_dim, case.dtype)
    exactly = functools.cache(lambda positional: attend_exactly(arrays, point, positional=positional))
    for name in PASSES:
        programs: dict[str, tuple[Program, dict[str, Any]]] = {}
        for implementation in (*TIMED, PLAIN):
            if implementation in record.results(name) or clock.spent:
                continue
            backward = name == "forward_backward"
            positional = implementation != PLAIN
            if positional:
                function = make_function(implementation, point, backward)
                given = arrays
            else:
                function = make_plain_function(backward)
                given = {name: arrays[name] for name in ("query", "key", "value")}
            with record.attempt(name, implementation, clock):
                try:
                    exact = exactly(positional)
                    program, calls, results = _prepare(function, given, exact.cotangent, memory_limit_gib)
                    outputs, (gradients,) = results if backward else (results, ({},))
                    errors = exact.errors(outputs, gradients)
                    programs[implementation] = (program, {"calls": calls, **judged(errors, TOLERANCE)})
                except Skipped as reason:
                    record.results(name)[implementation] = {"absent": str(reason)}
            if implementation not in programs:
                record.check_device()
        times = interleave([program for program, _ in programs.values()], REPEATS, SECONDS)
        for (implementation, (program, beside)), runs in zip(programs.items(), times, strict=True):
            each = [seconds / beside["calls"] for seconds in runs]
            record.results(name)[implementation] = table.measurement(program, each) | beside
        finish(record)


def _prepare(function, arrays: dict[str, Array], cotangent, memory_limit_gib: float) -> tuple[Program, int, Any]:
    """A program that runs several calls, how many, and what one makes with the cotangent given."""
    dense_cotangent = arrays["query"]
    compiled = compile_ahead(function, (arrays, dense_cotangent), memory_limit_gib)
    with failures_told():
        results = compiled.call(arrays, jnp.asarray(cotangent, dense_cotangent.dtype))
        runs = in_a_row(lambda: compiled.call(arrays, dense_cotangent), jax.block_until_ready)
    return compiled.program(runs.run), runs.calls, results


def add_floors(case: Timing, record: Record, rates: Rates) -> None:
    """What no program can be faster than, by pass: the largest of arithmetic, exp and bandwidth."""
    sizes = case.batch, case.heads, case.head_dim, jnp.dtype(case.dtype).itemsize
    for name in PASSES:
        seconds = work(case.point, *sizes, name == "forward_backward").seconds(rates, case.dtype)
        section = record.section(name)
        section["floors_ms"] = {kind: value * 1e3 for kind, value in seconds.items()}
        section["floor_ms"] = max(section["floors_ms"].values())


def finish(record: Record) -> None:
    """Adds the ratios of what is there, and writes the record."""
    for name in PASSES:
        section = record.section(name)
        ms = {each: values.get("median_ms") for each, values in section["implementations"].items()}
        ms["floor"] = section["floor_ms"]
        section["ratios"] = {
            f"{one}/{other}": ms[one] / ms[other] if ms.get(one) and ms.get(other) else None for one, other in RATIOS
        }
    record.save()
