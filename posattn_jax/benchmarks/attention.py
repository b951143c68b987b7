"""Times the implementations of relative attention, and compares them with each other and the machine's limits.

  python -m posattn_jax.benchmarks.attention [--shapes=1d1024,2d32,2d64,3d16] [--spans=.05,.12,.25,.5,1] [--window=7]
      [--implementations=dense,reference] [--batch=2 --heads=8 --head_dim=8 --dtype=float32 --backward --static]
      [--repeats=15 --seconds=60 --memory_limit_gib=8] [--out=FOLDER]

Prints a table for every point: a shape with a span. With --out it also writes `results.json` after every point, and
figures at the end. "forward + backward" computes the outputs and the gradients of every array. Sigma is traced, as in
training, unless --static. Exit codes: 0 done, 2 wrong input, 130 stopped by Ctrl-C.
"""

import dataclasses
import functools
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from absl import flags

from posattn_jax.axes import Array
from posattn_jax.benchmarks import command, table
from posattn_jax.benchmarks.roofline import Rates, limit_seconds, measure_rates
from posattn_jax.benchmarks.shapes import SHAPE_HELP, THRESHOLD, Point, make_inputs, parse_points
from posattn_jax.benchmarks.timing import one_pass
from posattn_jax.ops.attention import relative_attention
from posattn_jax.ops.attention.api import GENERAL
from posattn_jax.system import command_line
from posattn_jax.system.errors import InputError

# The implementations whose arrays have the size of the span: if sigma is traced they need its bound.
BOUNDED = ("patch", "window")


def define_flags() -> flags.FlagValues:
    """The flags, unparsed."""
    values = command.define_flags(repeats=15, seconds=60.0)
    own: dict[str, Any] = {"flag_values": values}
    flags.DEFINE_list("shapes", ["1d1024", "2d32", "2d64", "3d16"], f"Grids: {SHAPE_HELP}.", **own)
    flags.DEFINE_list("spans", [".05", ".12", ".25", ".5", "1"], "Half-spans, as shares of each size - 1.", **own)
    flags.DEFINE_integer("window", None, "One more half-span, in positions, for every shape.", lower_bound=1, **own)
    flags.DEFINE_list("implementations", list(GENERAL), f"Out of {', '.join(GENERAL)}.", **own)
    for name, default in (("batch", 2), ("heads", 8), ("head_dim", 8)):
        flags.DEFINE_integer(name, default, "A size of the arrays.", lower_bound=1, **own)
    flags.DEFINE_enum("dtype", "float32", ["float32", "bfloat16"], "Data type of all arrays except sigma.", **own)
    flags.DEFINE_bool("backward", False, "Time forward and backward pass together too.", **own)
    flags.DEFINE_bool("static", False, "Make sigma a compile-time constant, without a gradient.", **own)
    return values


def parse_flags(argv: list[str]) -> tuple[flags.FlagValues, list[Point]]:
    """The flags, and the points that they give; InputError for anything wrong with them."""
    options = command.parse(define_flags(), command.with_present_flags(argv), str(__doc__))
    for implementation in options.implementations:
        if implementation not in GENERAL:
            raise InputError(f"--implementations={implementation}: expected some of {', '.join(GENERAL)}")
    return options, parse_points(options.shapes, options.spans, options.window)


def make_function(
    implementation: str, point: Point, arrays: dict[str, Array], backward: bool, static: bool
) -> Callable:
    """A function (arrays, cotangent of the outputs) -> outputs, or outputs and the gradients of all arrays.

    With `static`, sigma is taken from `arrays` here, and is not among the arrays that the function receives.
    """
    fixed: dict[str, Any] = {"grid_shape": point.grid_shape, "threshold": THRESHOLD, "implementation": implementation}
    if static:
        fixed["sigma"] = arrays["sigma"]
    elif implementation in BOUNDED:
        fixed["span_bound"] = point.half
    return one_pass(lambda arrays: relative_attention(**arrays, **fixed), backward)


def measure_point(point: Point, options: flags.FlagValues, rates: Rates) -> dict[str, Any]:
    """Compiles and times every implementation at one point."""
    sizes = (options.batch, options.heads, options.head_dim)
    arrays = make_inputs(point, *sizes, options.dtype)
    traced = {name: array for name, array in arrays.items() if name != "sigma" or not options.static}
    passes = {name: name == "forward_backward" for name in (table.PASSES if options.backward else ("forward",))}
    programs = {
        (name, each): (make_function(each, point, arrays, backward, options.static), (traced, arrays["query"]))
        for name, backward in passes.items()
        for each in options.implementations
    }
    timed, measured = table.measure_all(programs, options), {}
    for name, backward in passes.items():
        limit = limit_seconds(point, *sizes, jnp.dtype(options.dtype).itemsize, rates, backward)
        implementations = {each: timed[name, each] for each in options.implementations}
        table.add_yardsticks(implementations, point, options.batch, options.heads)
        measured[name] = {"roofline_ms": limit * 1e3, "implementations": implementations}
    described = {name: getattr(point, name) for name in ("num_positions", "pairs", "pair_ratio")}
    return {"shape": point.name, **dataclasses.asdict(point), **described, "sigma": point.sigma, "passes": measured}


def main(argv: list[str]) -> int:
    """Measures every point; returns the exit code."""
    options, points = parse_flags(argv)
    if options.out is not None:
        from posattn_jax.benchmarks import figures  # fails without matplotlib, before anything is measured
    rates = measure_rates(options.dtype)
    measured, results = [], {}
    for point in points:
        measured.append(measure_point(point, options, rates))
        print(table.format_point(measured[-1]), flush=True)
        results = command.write(options, rates=dataclasses.asdict(rates), points=measured)
    if options.out is not None:
        for path in figures.draw(results, pathlib.Path(options.out)):
            print(path)
    return 0


run = functools.partial(command_line.run, main)  # prints an error in one line


if __name__ == "__main__":
    sys.exit(run(sys.argv))
