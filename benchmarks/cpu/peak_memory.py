"""How much memory an implementation takes, forward and backward, what XLA does not see included (Linux).

  python -m benchmarks.cpu.peak_memory [--implementation=native] [--shape=2d64] [--half=8] [--batch=2]
      [--heads=8] [--head_dim=64]

Prints, in MiB, the results (outputs and all gradients), the temporary memory that XLA plans, and by how much more than
the results the resident memory of this process grew at its highest. Exit codes: 0 done, 2 wrong input.
"""

import functools
import pathlib
import sys
from typing import Any

import jax
from absl import flags

from posattn_jax.benchmarks import attention, command
from posattn_jax.benchmarks.shapes import Point, make_inputs, parse_shape
from posattn_jax.ops.attention.api import GENERAL
from posattn_jax.system import command_line


def parse_flags(argv: list[str]) -> flags.FlagValues:
    """The flags; InputError for anything wrong with them."""
    values = flags.FlagValues()
    own: dict[str, Any] = {"flag_values": values}
    flags.DEFINE_enum("implementation", "native", GENERAL, "The implementation.", **own)
    flags.DEFINE_string("shape", "2d64", "The grid.", **own)
    for name, default in (("half", 8), ("batch", 2), ("heads", 8), ("head_dim", 64)):
        flags.DEFINE_integer(name, default, "A size.", lower_bound=1, **own)
    return command_line.parse(values, command.with_present_flags(argv), str(__doc__))


def resident_mib(highest: bool) -> float:
    """Of this process, now or at its highest since it was reset."""
    name = "VmHWM:" if highest else "VmRSS:"
    lines = pathlib.Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def main(argv: list[str]) -> int:
    """Runs the implementation once; returns the exit code."""
    options = parse_flags(argv)
    shape = parse_shape(options.shape, "shape")
    point = Point(options.shape, shape, tuple(min(options.half, size - 1) for size in shape))
    arrays = make_inputs(point, options.batch, options.heads, options.head_dim, "float32")
    function = attention.make_function(options.implementation, point, arrays, backward=True, static=False)
    compiled = jax.jit(function).lower(arrays, arrays["query"]).compile()
    planned: Any = compiled.memory_analysis()
    pathlib.Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the highest begins anew
    before = resident_mib(highest=False)
    jax.block_until_ready(compiled(arrays, arrays["query"]))
    results = planned.output_size_in_bytes / 2**20
    grown = resident_mib(highest=True) - before - results
    print(f"results {results:.0f}, planned by XLA {planned.temp_size_in_bytes / 2**20:.0f}, grown by {grown:.0f} more")
    return 0


run = functools.partial(command_line.run, main)  # wrong input is told in one line


if __name__ == "__main__":
    sys.exit(run(sys.argv))
