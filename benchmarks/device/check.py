"""Checks and times attention on a TPU: what `launch/tpu_check.sh` runs. For GPUs: gpu_kernels.py.

  python -m benchmarks.device.check [--minutes=8] [--out=benchmarks/results] [--only=2d64] [--quick]

First the shape that implementations are judged by, then parity of the timed ones with the float64 reference, then
further shapes. Every result is written at once, to OUT/DEVICE/CASE.json. What the time does not suffice for is named in
OUT/DEVICE/summary.json, and measured when the command is called again; what is there is not measured again unless
versions, device or the source of the operation have changed. --quick does the same with tiny shapes, on a CPU too.

Exit codes: 0 done, or out of time; 1 one disagrees with float64; 2 wrong input, or no TPU; 75 the process ended
before its time (a program hung, or broke the device), and the same command goes on; 130 stopped by Ctrl-C.
"""

import dataclasses
import hashlib
import pathlib
import re
import sys
import time
from typing import Any

import jax
from absl import flags

from benchmarks.device import measure, parity
from benchmarks.device.cases import Case, Timing, cases, quick_cases
from benchmarks.device.machine import describe_device
from benchmarks.device.record import Clock, Record
from benchmarks.device.table import format_results
from posattn_jax.benchmarks.command import describe_machine
from posattn_jax.benchmarks.roofline import measure_rates
from posattn_jax.system import command_line
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import write_json

ROOT = pathlib.Path(__file__).parents[2]
MEASURING = [f"posattn_jax/benchmarks/{name}.py" for name in ("shapes", "timing")]
MEASURING += [f"benchmarks/device/{name}.py" for name in ("exact", "measure", "parity", "programs")]


def define_flags() -> flags.FlagValues:
    """The flags, unparsed, apart from those of any other command."""
    values = flags.FlagValues()
    own: dict[str, Any] = {"flag_values": values}
    flags.DEFINE_float("minutes", 8, "Start no further case after this many minutes.", lower_bound=0, **own)
    flags.DEFINE_float("started", None, "Start of the time limit, in seconds since 1970; default: now.", **own)
    flags.DEFINE_float("step_seconds", 120, "Give up a program that takes longer at first.", lower_bound=0, **own)
    flags.DEFINE_string(
        "out", "benchmarks/results", "Parent of the results folder, which is named after the device.", **own
    )
    flags.DEFINE_string("only", "", "Cases whose names have this in them.", **own)
    flags.DEFINE_float("memory_limit_gib", 40, "What needs more temporary memory is left out.", lower_bound=0, **own)
    flags.DEFINE_bool("quick", False, "Tiny shapes, on any device.", **own)
    return values


def choose(options: flags.FlagValues) -> list[Case]:
    """The cases that are asked for; InputError where there is none, or no device for them."""
    if jax.default_backend() != "tpu" and not options.quick:
        raise InputError(
            f"no TPU: JAX has {jax.devices()[0].device_kind} ({jax.default_backend()}) alone. "
            "--quick runs tiny shapes on any device"
        )
    every = quick_cases() if options.quick else cases()
    chosen = [case for case in every if options.only in case.name]
    if not chosen:
        raise InputError(f"--only={options.only}: no case has this in its name, such as {every[0].name}")
    return chosen


def source_digest() -> str:
    """SHA-256 of what is measured, and of what measures it."""
    digest = hashlib.sha256()
    for path in (*sorted((ROOT / "posattn_jax" / "ops").rglob("*.py")), *(ROOT / name for name in MEASURING)):
        digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def main(argv: list[str]) -> int:
    """Measures until the time is spent; returns the exit code."""
    options = command_line.parse(define_flags(), argv, str(__doc__))
    clock = Clock(options.started or time.time(), options.minutes, options.step_seconds)
    chosen = choose(options)
    machine = describe_machine()
    machine["versions"] |= describe_device()
    name = re.sub(r"[^a-z0-9]+", "_", machine["device"]["kind"].lower()) + ("_quick" if options.quick else "")
    folder = command_line.make_folder(f"{options.out}/{name}")
    assert folder is not None
    header = {"source": source_digest(), **{key: machine[key] for key in ("device", "versions")}}
    rates = None
    summary: dict[str, Any] = {**header, "minutes": options.minutes}
    summary |= {"done": [], "given_up": [], "left_out": [], "disagree": []}
    for case in chosen:
        record = Record(folder / f"{case.name}.json", header | {"case": case.described})
        complete = (measure if isinstance(case, Timing) else parity).is_complete
        if not complete(record) and not record.given_up and not clock.spent:
            print(case.name, flush=True)
            try:
                if isinstance(case, Timing):
                    rates = rates or measure_rates("bfloat16")  # and float32
                    record.values["rates"] = {"from": "measured", **dataclasses.asdict(rates)}
                    measure.measure(case, record, clock, rates, options.memory_limit_gib)
                else:
                    parity.measure(case, record, clock)
            except Exception as error:
                record.note_failure(error)
            jax.clear_caches()
        summary["done" if complete(record) else "given_up" if record.given_up else "left_out"].append(case.name)
        summary["disagree"] += disagreements(case.name, record)
        write_json(folder / "summary.json", summary)
    print(format_results(folder))
    for line in summary["disagree"]:
        print(f"disagrees with float64: {line}", file=sys.stderr)
    return 1 if summary["disagree"] else 0


def disagreements(name: str, record: Record) -> list[str]:
    """What computes something else than the exact values."""
    return [
        f"{name}, {passed}: {implementation}, {result['error']}"
        for passed in record.values["passes"]
        for implementation, result in record.results(passed).items()
        if not result.get("agrees", True)
    ]


def run(argv: list[str]) -> int:
    """`main`, with wrong input told in one line; returns the exit code."""
    return command_line.run(main, argv)


if __name__ == "__main__":
    sys.exit(run(sys.argv))
