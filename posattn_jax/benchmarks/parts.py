"""Measures, with a profile, how much of a program's time each part of a model takes."""

import collections
import contextlib
import pathlib
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax

from posattn_jax.benchmarks.timing import Skipped

# The parts, by the scopes in which operations were traced; operations in no such scope are the rest.
PARTS = {
    "attention": re.compile(r"/(attention|mixing|cross)/"),
    "feed-forward": re.compile(r"/feed_forward/"),
    "optimiser": re.compile(r"/optimizer/"),
}
REST = "rest"

# An instruction of HLO: its name, its operation, and the scope it was traced in. A fusion has the scope of its root.
_INSTRUCTION = re.compile(r'^\s*(?:ROOT )?%?([\w.\-]+) = .*?\s([a-z][\w\-]*)\(.*?(?:op_name="([^"]*)".*)?$')
# Instructions that only run others, whose time is counted for those.
_CONTAINERS = {"while", "conditional", "call"}


def parts_of(hlo: str) -> dict[str, str]:
    """The part that each instruction of a compiled program belongs to, without instructions that only run others."""
    parts = {}
    for line in hlo.splitlines():
        found = _INSTRUCTION.match(line)
        if found and found[2] not in _CONTAINERS:
            parts[found[1]] = part_of(found[3] or "")
    return parts


def part_of(scope: str) -> str:
    """The part that a scope belongs to."""
    return next((part for part, pattern in PARTS.items() if pattern.search(scope)), REST)


def measure(run: Callable[[], Any], hlo: str, folder: pathlib.Path | None = None) -> dict[str, float]:
    """The shares of the parts in the time of `run`, which runs a compiled program with this HLO and waits for it.

    Args:
      run: the function that is called once, under the profiler.
      hlo: the text of the program.
      folder: where to keep the trace, for Perfetto; None: it is not kept.

    Returns:
      "busy": the seconds of instructions, summed over threads or streams, per second of the run. "idle": the share of
      the run in which no instruction ran. And the share of each part in the time of all instructions.

    Raises:
      Skipped: the profile has no instruction of the program.
    """
    with contextlib.ExitStack() as stack:
        kept = folder or pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        before = set(kept.glob("**/*.xplane.pb"))
        with jax.profiler.trace(str(kept), create_perfetto_trace=folder is not None):
            started = time.perf_counter()
            run()
            seconds = time.perf_counter() - started
        (path,) = set(kept.glob("**/*.xplane.pb")) - before
        profile = jax.profiler.ProfileData.from_file(str(path))
    return shares(list(events_of(profile, jax.default_backend())), parts_of(hlo), seconds)


def events_of(profile: Any, platform: str) -> Iterator[tuple[str, float, float]]:
    """The instruction, start and end in seconds of all events of devices, or of threads if the device is a CPU."""
    for plane in profile.planes:
        if platform != "cpu" and not plane.name.startswith("/device:"):
            continue  # threads of the host, whose events may have the names of instructions that they only start
        for line in plane.lines:
            for event in line.events:
                # on a GPU an event has the name of its kernel, and its instruction as a statistic
                name = next((value for stat, value in event.stats if stat == "hlo_op"), event.name)
                yield name, event.start_ns / 1e9, (event.start_ns + event.duration_ns) / 1e9


def shares(events: list[tuple[str, float, float]], parts: dict[str, str], seconds: float) -> dict[str, float]:
    """As `measure`, for events given by name, start and end."""
    spent: dict[str, float] = collections.defaultdict(float)
    intervals = []
    for name, start, end in events:
        if name in parts:
            spent[parts[name]] += end - start
            intervals.append((start, end))
    if not intervals:
        raise Skipped("the profile has no instruction of the program")
    covered, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    total = sum(spent.values())
    found = {part: spent[part] / total for part in (*PARTS, REST)}
    return {"busy": total / seconds, "idle": max(0.0, 1 - covered / seconds), **found}
