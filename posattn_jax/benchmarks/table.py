"""Measures programs, compares their times, and writes tables to the screen or into a page."""

import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from absl import flags

from posattn_jax.benchmarks.shapes import Point
from posattn_jax.benchmarks.timing import Program, Skipped, interleave, prepare
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import write_text

# The passes that are timed, by their names in the results and their names in tables.
PASSES = {"forward": "forward", "forward_backward": "forward + backward"}

# The implementations that compute every pair: the others are compared with the faster of them.
BASELINES = ("dense", "reference")

COLUMNS = {
    "median_ms": "ms",
    "temp_mib": "temp MiB",
    "compile_seconds": "compile s",
    "speed_up": "speed-up",
    "efficiency": "efficiency",
    "ns_per_pair": "ns/pair",
}


def measurement(program: Program, times: list[float]) -> dict[str, Any]:
    """The figures of one program: times, memory and compile time."""
    lower, median, upper = np.percentile(times, [25, 50, 75]) * 1e3
    return {
        "median_ms": float(median),
        "quartiles_ms": [float(lower), float(upper)],
        "repeats": len(times),
        "temp_mib": program.temp_bytes / 2**20,
        "compile_seconds": program.compile_seconds,
    }


def measure_all(programs: Mapping[Any, tuple[Callable, tuple]], options: flags.FlagValues) -> dict[Any, dict[str, Any]]:
    """The figures of functions with their arguments, which take turns to run; or the reason why one was "skipped"."""
    figures, ready = {}, {}
    for name, (function, arguments) in programs.items():
        figures[name] = {}
        try:
            ready[name] = prepare(function, arguments, options.memory_limit_gib)
        except Skipped as reason:
            figures[name]["skipped"] = str(reason)
    times = interleave(list(ready.values()), options.repeats, options.seconds)
    for (name, program), runs in zip(ready.items(), times, strict=True):
        figures[name] = measurement(program, runs)
    return figures


def add_yardsticks(implementations: dict[str, dict[str, Any]], point: Point, batch: int, heads: int) -> None:
    """Adds figures that can be compared between points to those of every implementation in one pass.

      speed_up    = time of the faster of dense and reference / time
      efficiency  = speed_up / pair_ratio: 1 if the time shrank as much as the number of pairs
      ns_per_pair = time / (b h pairs inside the spans)

    The first two are None if neither dense nor reference was timed.
    """
    measured = {name: values for name, values in implementations.items() if "median_ms" in values}
    baseline = min((measured[name]["median_ms"] for name in BASELINES if name in measured), default=None)
    for values in measured.values():
        speed_up = None if baseline is None else baseline / values["median_ms"]
        values["speed_up"] = speed_up
        values["efficiency"] = None if speed_up is None else speed_up / point.pair_ratio
        values["ns_per_pair"] = values["median_ms"] * 1e6 / (batch * heads * point.pairs)


def format_point(result: dict[str, Any]) -> str:
    """The table of one point: a block of rows per pass, and below it the reasons why implementations were skipped."""
    half, positions = (" x ".join(str(size) for size in result[name]) for name in ("half", "grid_shape"))
    lines = [
        f"{result['shape']}: {positions} positions, half-span {half}: {result['pairs']:,} pairs inside the spans, "
        f"{number(result['pair_ratio'])} times as many in all"
    ]
    for name, passed in result["passes"].items():
        rows = [[PASSES[name], *COLUMNS.values()]]
        rows += [
            [implementation, *(number(values.get(key)) for key in COLUMNS)]
            for implementation, values in passed["implementations"].items()
        ]
        rows.append(["roofline", number(passed["roofline_ms"])])
        for first, *rest in rows:
            lines.append(f"  {first:<20}" + "".join(f"{cell:>12}" for cell in rest))
        for implementation, values in passed["implementations"].items():
            if "skipped" in values:
                lines.append(f"  {implementation} skipped: {values['skipped']}")
    return "\n".join(lines) + "\n"


def number(value: float | None) -> str:
    """The number with about three digits and without an exponent; a dash for None."""
    if value is None:
        return "-"
    if value == 0:
        return "0"
    return f"{value:,.{min(6, max(0, 2 - math.floor(math.log10(abs(value)))))}f}"


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose first row is the header."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    return "\n".join(lines)


def put_into(path: pathlib.Path, mark: str, text: str) -> None:
    """Replaces the text in a file between "<!-- MARK -->" and "<!-- /MARK -->"; InputError without these lines."""
    if not path.is_file():
        raise InputError(f"--into={path}: no such file")
    old, (begin, end) = path.read_text(encoding="utf-8"), (f"<!-- {mark} -->", f"<!-- /{mark} -->")
    if not all(old.count(each) == 1 for each in (begin, end)):
        raise InputError(f'--into={path}: expected one line "{begin}" and, below it, one "{end}"')
    before, _, rest = old.partition(begin)
    _, _, after = rest.partition(end)
    write_text(path, f"{before}{begin}\n\n{text}\n{end}{after}")
