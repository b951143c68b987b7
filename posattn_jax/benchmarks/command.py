"""Functions that all measuring commands share: flags, and results with the machine that they were measured on."""

import os
import pathlib
import platform
import re
from importlib import metadata
from typing import Any

import jax
from absl import flags

from posattn_jax.system import command_line
from posattn_jax.system.files import write_json

# The environment variables that change speed: those of the compiler, and of a CPU's memory allocator.
ENVIRONMENT = ("XLA_FLAGS", "GLIBC_TUNABLES", "MALLOC_")


def define_flags(repeats: int, seconds: float) -> flags.FlagValues:
    """The flags that all measuring commands have, unparsed, in a registry of their own."""
    values = flags.FlagValues()
    own: dict[str, Any] = {"flag_values": values}
    flags.DEFINE_integer("repeats", repeats, "Timed runs per case; fewer if --seconds is short.", lower_bound=1, **own)
    flags.DEFINE_float(
        "seconds", seconds, "Time of all timed runs; each case has at least three.", lower_bound=0, **own
    )
    flags.DEFINE_float("memory_limit_gib", 8, "What needs more temporary memory is skipped.", lower_bound=0, **own)
    flags.DEFINE_string("out", None, "The folder for results.json, and figures where there are any.", **own)
    return values


def with_present_flags(argv: list[str]) -> list[str]:
    """The arguments, with --implementations and --implementation where earlier versions had --layouts and --layout."""
    return [re.sub("^--?layout(s?)(?==|$)", r"--implementation\1", each) for each in argv]


def parse(values: flags.FlagValues, argv: list[str], about: str) -> flags.FlagValues:
    """`command_line.parse`, which also makes the folder of results.

    Raises:
      InputError: anything wrong with the flags.
    """
    options = command_line.parse(values, argv, about)
    command_line.make_folder(options.out)
    return options


def describe_machine() -> dict[str, Any]:
    """The device, the CPUs, the environment and the versions."""
    return {
        "device": {"kind": jax.devices()[0].device_kind, "platform": jax.default_backend()},
        "cpu_count": os.cpu_count(),
        "usable_cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "environment": {name: os.environ[name] for name in sorted(os.environ) if name.startswith(ENVIRONMENT)},
        "versions": {name: metadata.version(name) for name in ("jax", "jaxlib", "numpy")}
        | {"python": platform.python_version()},
    }


def write(options: flags.FlagValues, **measured: Any) -> dict[str, Any]:
    """Returns the options, the machine and the measurements; with --out it also writes them to `results.json`."""
    asked = {name: value for name, value in options.flag_values_dict().items() if name != "out"}
    results = {"options": asked, **describe_machine(), **measured}
    if options.out is not None:
        write_json(pathlib.Path(options.out) / "results.json", results)
    return results
