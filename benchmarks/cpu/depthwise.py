"""How long depthwise convolutions take, forward and backward, inside of a loop and outside.

  python -m benchmarks.cpu.depthwise [--grid=8x8 --kernel=3x3 --batch=40 --width=64 --steps=2]
      [--repeats=20 --seconds=20 --memory_limit_gib=8] [--out=FOLDER]

Compares the sum over shifted grids, which `ops/depthwise.py` takes on CPUs, with XLA's convolution, each alone and in a
loop of --steps steps, and prints the milliseconds of one convolution. With --out also `results.json`. Exit codes:
0 done, 2 wrong input, 130 stopped by Ctrl-C.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any

import jax
from absl import flags

from posattn_jax.axes import Array
from posattn_jax.benchmarks import command
from posattn_jax.benchmarks.shapes import parse_sizes
from posattn_jax.benchmarks.table import measurement
from posattn_jax.benchmarks.timing import interleave, prepare
from posattn_jax.ops.depthwise import by_shifts, by_xla
from posattn_jax.ops.kernels import check_kernel
from posattn_jax.system import command_line
from posattn_jax.system.errors import InputError

FORMS = {"shifted grids": by_shifts, "XLA": by_xla}


def define_flags() -> flags.FlagValues:
    """The flags, unparsed, apart from those of any other command."""
    values = command.define_flags(repeats=20, seconds=20.0)
    own: dict[str, Any] = {"flag_values": values}
    flags.DEFINE_string("grid", "8x8", "The sizes of the grid.", **own)
    flags.DEFINE_string("kernel", "3x3", "The sizes of the kernel, odd.", **own)
    for name, default in {"batch": 40, "width": 64, "steps": 2}.items():
        flags.DEFINE_integer(name, default, "How many examples, features, or steps.", lower_bound=1, **own)
    return values


def shapes(options: flags.FlagValues) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of the grid and the kernel; InputError where they are none, or do not fit."""
    grid_shape, kernel_shape = parse_sizes(options.grid, "grid"), parse_sizes(options.kernel, "kernel")
    try:
        return grid_shape, check_kernel(kernel_shape, grid_shape)
    except ValueError as error:
        raise InputError(f"--kernel={options.kernel}: {error}") from error


def step(convolve: Callable[[Array, Array], Array], inputs: Array, kernel: Array) -> tuple[Array, Array]:
    """Both moved by a gradient, so that the next step needs this one."""
    gradients = jax.grad(lambda *given: (convolve(*given) ** 2).sum(), (0, 1))(inputs, kernel)
    return inputs - 1e-9 * gradients[0], kernel - 1e-9 * gradients[1]


def loop(convolve: Callable[[Array, Array], Array], steps: int, inputs: Array, kernel: Array) -> tuple[Array, Array]:
    """So many steps."""
    return jax.lax.scan(lambda given, _: (step(convolve, *given), None), (inputs, kernel), None, length=steps)[0]


def measure(options: flags.FlagValues) -> dict[str, dict[str, Any]]:
    """Of each form, alone and in a loop."""
    grid_shape, kernel_shape = shapes(options)
    inputs = jax.random.normal(jax.random.key(0), (options.batch, *grid_shape, options.width))
    kernel = jax.random.normal(jax.random.key(1), (*kernel_shape, options.width))
    programs, steps = {}, {}
    for name, convolve in FORMS.items():
        for place, function, count in (
            ("alone", functools.partial(step, convolve), 1),
            ("in a loop", functools.partial(loop, convolve, options.steps), options.steps),
        ):
            programs[f"{name}, {place}"] = prepare(jax.jit(function), (inputs, kernel), options.memory_limit_gib)
            steps[f"{name}, {place}"] = count
    times = interleave(list(programs.values()), options.repeats, options.seconds)
    return {
        name: measurement(programs[name], [each / steps[name] for each in runs])
        for name, runs in zip(programs, times, strict=True)
    }


def format_table(figures: dict[str, dict[str, Any]]) -> str:
    """A line a program."""
    lines = [f"{'':24s} {'ms':>10s} {'temp MiB':>10s} {'compile s':>10s}"]
    for name, row in figures.items():
        lines.append(f"{name:24s} {row['median_ms']:10.2f} {row['temp_mib']:10.2f} {row['compile_seconds']:10.1f}")
    return "\n".join(lines) + "\n"


def main(argv: list[str]) -> int:
    """Measures; returns the exit code."""
    options = command.parse(define_flags(), argv, str(__doc__))
    figures = measure(options)
    print(format_table(figures), flush=True)
    command.write(options, programs=figures)
    return 0


run = functools.partial(command_line.run, main)  # wrong input is told in one line


if __name__ == "__main__":
    sys.exit(run(sys.argv))
