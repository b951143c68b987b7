"""Times one case: our layouts, attention without positions, and FlexAttention, each against float64."""

import dataclasses
import functools
import importlib.util
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.device.cases import Timing
from benchmarks.device.exact import attend_exactly
from benchmarks.device.programs import in_a_row, make_function, make_plain_function
from benchmarks.device.record import Clock, Record
from posattn_jax.axes import Array
from posattn_jax.benchmarks import table
from posattn_jax.benchmarks.roofline import Rates, work
from posattn_jax.benchmarks.shapes import make_inputs
from posattn_jax.benchmarks.timing import Program, Skipped, compile_ahead, failures_told, interleave

LAYOUTS = ("fused", "tiled", "dense")
# What they are compared with: the platform's own attention of all pairs, and FlexAttention in a process of its own.
PLAIN = {"gpu": "cudnn", "tpu": "flash"}
RIVALS = {"gpu": ("cudnn", "flex"), "tpu": ("flash",)}
PASSES = tuple(table.PASSES)

# How many times the first takes as long as the second.
RATIOS = (
    ("fused", "tiled"),
    ("fused", "flex"),
    ("fused", "cudnn"),
    ("fused", "flash"),
    ("fused", "floor"),
    ("tiled", "dense"),
    ("tiled", "floor"),
)

# Of |x - exact| / |exact|: float32 is multiplied in TF32 by default, on a TPU in bfloat16.
TOLERANCES = {"gpu": {"float32": 5e-3, "bfloat16": 5e-2}, "tpu": {"float32": 5e-2, "bfloat16": 5e-2}}

REPEATS, SECONDS = 20, 3.0


def is_complete(record: Record, platform: str) -> bool:
    """Whether nothing of a case is left to measure."""
    return all({*LAYOUTS, *RIVALS[platform]} <= record.results(name).keys() for name in PASSES)


def measure(case: Timing, record: Record, clock: Clock, rates: Rates, memory_limit_gib: float, platform: str) -> None:
    """Measures what the record does not have yet, until the time is spent."""
    plain = PLAIN[platform]
    add_floors(case, record, rates)
    point = case.point
    arrays = make_inputs(point, case.batch, case.heads, case.head_dim, case.dtype)
    exactly = functools.cache(lambda positional: attend_exactly(arrays, point, positional=positional))
    for name in PASSES:
        programs: dict[str, tuple[Program, dict[str, Any]]] = {}
        for implementation in (*LAYOUTS, plain):
            if implementation in record.results(name) or clock.spent:
                continue
            backward = name == "forward_backward"
            positional = implementation != plain
            if positional:
                function = make_function(implementation, point, backward)
                given = arrays
            else:
                function = make_plain_function(plain, backward)
                given = {name: arrays[name] for name in ("query", "key", "value")}
            with record.attempt(name, implementation, clock):
                try:
                    exact = exactly(positional)
                    program, calls, results = _prepare(function, given, exact.cotangent, memory_limit_gib)
                    outputs, (gradients,) = results if backward else (results, ({},))
                    errors = exact.errors(outputs, gradients)
                    programs[implementation] = (
                        program,
                        {"calls": calls, **judged(errors, TOLERANCES[platform][case.dtype])},
                    )
                except Skipped as reason:
                    record.results(name)[implementation] = {"absent": str(reason)}
            if implementation not in programs:
                record.check_device()
        times = interleave([program for program, _ in programs.values()], REPEATS, SECONDS)
        for (implementation, (program, beside)), runs in zip(programs.items(), times, strict=True):
            each = [seconds / beside["calls"] for seconds in runs]
            record.results(name)[implementation] = table.measurement(program, each) | beside
        finish(record)
    if "flex" in RIVALS[platform] and not clock.spent and not all("flex" in record.results(name) for name in PASSES):
        with record.attempt("forward_backward", "flex", clock):
            for name, result in run_flex(case, 0.95 * min(clock.step_seconds, clock.seconds_left)).items():
                record.results(name)["flex"] = result
        finish(record)


def _prepare(function, arrays: dict[str, Array], cotangent, memory_limit_gib: float) -> tuple[Program, int, Any]:
    """A program that runs several calls, how many, and what one makes with the cotangent given."""
    dense_cotangent = arrays["query"]
    compiled = compile_ahead(function, (arrays, dense_cotangent), memory_limit_gib)
    with failures_told():
        results = compiled.call(arrays, jnp.asarray(cotangent, dense_cotangent.dtype))
        runs = in_a_row(lambda: compiled.call(arrays, dense_cotangent), jax.block_until_ready)
    return compiled.program(runs.run), runs.calls, results


def judged(errors: dict[str, float], tolerance: float) -> dict[str, Any]:
    """The errors, the largest, and whether it is within the tolerance; None for what is no number."""
    finite = {name: error if math.isfinite(error) else None for name, error in errors.items()}
    worst = None if None in finite.values() else max(errors.values())
    return {"errors": finite, "error": worst, "agrees": worst is not None and worst <= tolerance}


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


def run_flex(case: Timing, limit_seconds: float) -> dict[str, dict[str, Any]]:
    """FlexAttention in a process of its own, in which PyTorch has CUDA's libraries to itself; by pass."""
    if importlib.util.find_spec("torch") is None:
        return absent("PyTorch is not installed")
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "flex.json")
        asked = json.dumps(dataclasses.asdict(case))
        command = [sys.executable, "-m", "benchmarks.device.flex", asked, str(out)]
        environment = os.environ | {"JAX_PLATFORMS": "cpu"}  # JAX draws the arrays alone
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=limit_seconds, check=False
            )
        except subprocess.TimeoutExpired:
            return absent(f"took more than {limit_seconds:.0f} s")
        if not out.exists():
            lines = done.stderr.strip().splitlines() or ["nothing was said"]
            return absent(f"exit code {done.returncode}: {lines[-1]}")
        return json.loads(out.read_text())


def absent(reason: str) -> dict[str, dict[str, Any]]:
    """Nothing, by pass."""
    return {name: {"absent": reason} for name in PASSES}
