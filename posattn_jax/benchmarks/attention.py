"""Times the layouts of relative attention against each other and against what the machine could do.

  python -m posattn_jax.benchmarks.attention [--shapes=1d1024,2d32,2d64,3d16] [--spans=.05,.12,.25,.5,1] [--window=7]
      [--layouts=dense,reference] [--batch=2 --heads=8 --head_dim=8 --dtype=float32 --backward --static]
      [--repeats=15 --seconds=60 --memory_limit_gib=8] [--out=FOLDER]

Prints a table for every point, a shape with a span; with --out also `results.json`, after every point, and figures.
"forward + backward" computes the outputs and the gradients of every array. Sigma is traced, as in training, unless
--static. Exit codes: 0 done, 2 wrong input, 130 stopped by Ctrl-C.
"""

import dataclasses
import sys
from typing import Any

import jax.numpy as jnp
from absl import flags

from posattn_jax.benchmarks import figures, table
from posattn_jax.benchmarks.machine import describe_machine
from posattn_jax.benchmarks.programs import make_function
from posattn_jax.benchmarks.roofline import Rates, limit_seconds, measure_rates
from posattn_jax.benchmarks.shapes import SHAPE_HELP, Point, make_inputs, parse_points
from posattn_jax.benchmarks.timing import Skipped, interleave, prepare
from posattn_jax.ops.attention.api import GENERAL
from posattn_jax.system import command_line
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import write_json


def define_flags() -> flags.FlagValues:
    """The flags, unparsed, apart from those of any other command."""
    values = flags.FlagValues()
    own = {"flag_values": values}
    flags.DEFINE_list("shapes", ["1d1024", "2d32", "2d64", "3d16"], f"Grids: {SHAPE_HELP}.", **own)
    flags.DEFINE_list("spans", [".05", ".12", ".25", ".5", "1"], "Half-spans, as shares of each size - 1.", **own)
    flags.DEFINE_integer("window", None, "One more half-span, in positions, for every shape.", lower_bound=1, **own)
    flags.DEFINE_list("layouts", list(GENERAL), f"Layouts out of {', '.join(GENERAL)}.", **own)
    for name, default in (("batch", 2), ("heads", 8), ("head_dim", 8)):
        flags.DEFINE_integer(name, default, "A size of the arrays.", lower_bound=1, **own)
    flags.DEFINE_enum("dtype", "float32", ["float32", "bfloat16"], "Of all arrays but sigma.", **own)
    flags.DEFINE_bool("backward", False, "Time forward and backward pass together too.", **own)
    flags.DEFINE_bool("static", False, "Sigma is known while compiling, and has no gradient.", **own)
    flags.DEFINE_integer("repeats", 15, "Runs of every layout, fewer where --seconds is short.", lower_bound=1, **own)
    flags.DEFINE_float("seconds", 60, "To spend on the runs of a point, though at least three each.", **own)
    flags.DEFINE_float("memory_limit_gib", 8, "Layouts that need more temporary memory are skipped.", **own)
    flags.DEFINE_string("out", None, "The folder for results.json and figures.", **own)
    flags.DEFINE_bool("help", False, "Show this.", **own)
    return values


def parse_flags(argv: list[str]) -> tuple[flags.FlagValues, list[Point]]:
    """The flags and the points they ask for; InputError for anything wrong with them."""
    options = command_line.parse(define_flags(), argv)
    for layout in options.layouts:
        if layout not in GENERAL:
            raise InputError(f"--layouts={layout}: expected some of {', '.join(GENERAL)}")
    for name in ("shapes", "spans", "layouts"):
        if not options[name].value:
            raise InputError(f"--{name} is empty: expected at least one")
    return options, parse_points(options.shapes, options.spans, options.window)


def measure_point(point: Point, options: flags.FlagValues, rates: Rates) -> dict[str, Any]:
    """Compiles and times every layout at one point."""
    sizes = (options.batch, options.heads, options.head_dim)
    arrays = make_inputs(point, *sizes, options.dtype)
    traced = {name: array for name, array in arrays.items() if name != "sigma" or not options.static}
    programs, passes = {}, {}
    for name in table.PASSES if options.backward else ("forward",):
        backward = name == "forward_backward"
        limit = limit_seconds(point, *sizes, jnp.dtype(options.dtype).itemsize, rates, backward)
        passes[name] = {"roofline_ms": limit * 1e3, "layouts": {}}
        for layout in options.layouts:
            function = make_function(layout, point, arrays, backward, options.static)
            passes[name]["layouts"][layout] = {}
            try:
                programs[name, layout] = prepare(function, (traced, arrays["query"]), options.memory_limit_gib)
            except Skipped as reason:
                passes[name]["layouts"][layout] = {"skipped": str(reason)}
    times = interleave(list(programs.values()), options.repeats, options.seconds)
    for (name, layout), program, runs in zip(programs, programs.values(), times, strict=True):
        passes[name]["layouts"][layout] = table.measurement(program, runs)
    for measured in passes.values():
        table.add_yardsticks(measured["layouts"], point, options.batch, options.heads)
    described = {name: getattr(point, name) for name in ("num_positions", "pairs", "pair_ratio")}
    return {"shape": point.name, **dataclasses.asdict(point), **described, "sigma": point.sigma, "passes": passes}


def main(argv: list[str]) -> int:
    """Measures every point; returns the exit code."""
    options, points = parse_flags(argv)
    if options.help:
        print(f"{__doc__}\n{options.get_help()}")
        return 0
    out = command_line.make_folder(options.out)
    rates = measure_rates(options.dtype)
    asked = {name: value for name, value in options.flag_values_dict().items() if name not in ("help", "out")}
    results = {"options": asked, **describe_machine(), "rates": dataclasses.asdict(rates), "points": []}
    for point in points:
        results["points"].append(measure_point(point, options, rates))
        print(table.format_point(results["points"][-1]), flush=True)
        if out is not None:
            write_json(out / "results.json", results)
    if out is not None:
        for path in figures.draw(results, out):
            print(path)
    return 0


def run(argv: list[str]) -> int:
    """`main`, with wrong input told in one line; returns the exit code."""
    return command_line.run(main, argv)


if __name__ == "__main__":
    sys.exit(run(sys.argv))
