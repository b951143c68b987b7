"""Parameters, work, memory and time of Translution's forms, compared with a naive form that stores a value per pair.

  python -m posattn_jax.benchmarks.translution [--grids=4x4,8x8,16x16] [--batch=32 --width=64 --heads=1]
      [--half_span=2 --rank=8 --num_bases=8] [--repeats=15 --seconds=30 --memory_limit_gib=8] [--out=FOLDER]

Prints a table for every grid; with --out it also writes `results.json` after every grid. Times and temporary memory are
those of outputs and the gradients of every array, for given attention weights. Multiplications are those of one
example's outputs. Exit codes: 0 done, 2 wrong input, 130 stopped by Ctrl-C.
"""

import functools
import math
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from posattn_jax.axes import Array, Features, Float, Query, Sizes, Weights
from posattn_jax.benchmarks import command, table
from posattn_jax.benchmarks.shapes import parse_sizes
from posattn_jax.benchmarks.timing import one_pass
from posattn_jax.ops import grid
from posattn_jax.ops.translution import basis_translution, low_rank_translution, translution
from posattn_jax.system import command_line
from posattn_jax.system.errors import InputError

HEADER = "form                 parameters   multiplications   temp MiB         ms   to naive"


def define_flags() -> flags.FlagValues:
    """The flags, unparsed."""
    values = command.define_flags(repeats=15, seconds=30.0)
    own: dict[str, Any] = {"flag_values": values}
    flags.DEFINE_list("grids", ["4x4", "8x8", "16x16"], "Grids, as 16, 8x8 or 4x8x8.", **own)
    sizes = {"batch": 32, "width": 64, "heads": 1, "half_span": 2, "rank": 8, "num_bases": 8}
    for name, default in sizes.items():
        flags.DEFINE_integer(name, default, "A size of the arrays.", lower_bound=1, **own)
    return values


def parse_flags(argv: list[str]) -> tuple[flags.FlagValues, list[Sizes]]:
    """The flags, and the grids that they give; InputError for anything wrong with them."""
    options = command.parse(define_flags(), argv, str(__doc__))
    if options.width % options.heads:
        raise InputError(f"--heads={options.heads} does not divide --width={options.width}")
    return options, [parse_sizes(name, "grids") for name in options.grids]


def naive_translution(
    weights: Weights, inputs: Features, matrices: Float[Array, "*r c h d"], *, grid_shape: Sizes
) -> Query:
    """Equation 5 as printed: a matrix and a value for every pair, [N N c h d] and [b N N h d]."""
    where = grid.positions(grid_shape)
    offsets = where - where[:, None] + np.array(grid_shape) - 1
    values = jnp.einsum("bsc,tschd->btshd", inputs, matrices[tuple(np.moveaxis(offsets, -1, 0))])
    return jnp.einsum("bhts,btshd->bthd", weights, values)


def make_forms(grid_shape: Sizes, options: flags.FlagValues) -> dict[str, tuple[Callable, dict[str, Sizes], int]]:
    """For every form: the function of its arrays, their shapes, and the multiplications of one example's outputs."""
    n, c, h = grid.num_positions(grid_shape), options.width, options.heads
    d, k, rank = c // h, options.num_bases, options.rank
    everything = grid.relative_shape(grid_shape)
    near = tuple(min(2 * options.half_span + 1, size) for size in everything)
    window = math.prod(min(size, side) for size, side in zip(near, grid_shape, strict=True))
    at = {"grid_shape": grid_shape}
    low_rank = {"matrix": (c, h, d), "relative": (*everything, c, h, rank), "up": (h, rank, d)}
    general = {"basis": (k, c, h, d), "coefficients": (*everything, k)}
    full = n * n * (c * h * d + h * d)
    return {
        "naive": (functools.partial(naive_translution, **at), {"matrices": (*everything, c, h, d)}, full),
        "full": (functools.partial(translution, **at), {"matrices": (*everything, c, h, d)}, full),
        f"span, half {options.half_span}": (
            functools.partial(translution, **at),
            {"matrices": (*near, c, h, d)},
            n * window * (c * h * d + h * d),
        ),
        f"low rank {rank}": (
            functools.partial(low_rank_translution, **at),
            low_rank,
            n * c * h * d + n * n * (c * h * rank + h * rank + h * d) + n * h * rank * d,
        ),
        f"general, {k} matrices": (
            functools.partial(basis_translution, **at),
            general,
            n * n * h * k * (1 + c) + n * k * c * h * d,
        ),
    }


def measure_grid(grid_shape: Sizes, options: flags.FlagValues) -> dict[str, Any]:
    """Compiles and times every form on one grid."""
    n = grid.num_positions(grid_shape)
    rng = np.random.default_rng(0)
    weights = jax.nn.softmax(jnp.asarray(rng.normal(size=(options.batch, options.heads, n, n)), jnp.float32))
    given = {"weights": weights, "inputs": jnp.asarray(rng.normal(size=(options.batch, n, options.width)), jnp.float32)}
    cotangent = jnp.ones((options.batch, n, options.heads, options.width // options.heads))
    forms, programs = {}, {}
    for name, (function, shapes, multiplications) in make_forms(grid_shape, options).items():
        trained = {key: jnp.asarray(rng.normal(size=shape), jnp.float32) / 8 for key, shape in shapes.items()}
        forms[name] = {"parameters": sum(array.size for array in trained.values()), "multiplications": multiplications}
        both = one_pass(lambda arrays, function=function: function(**arrays), backward=True)
        programs[name] = both, (given | trained, cotangent)
    figures = table.measure_all(programs, options)
    return {"grid": list(grid_shape), "forms": {name: form | figures[name] for name, form in forms.items()}}


def format_grid(measured: dict[str, Any]) -> str:
    """The table of one grid."""
    lines = [" x ".join(map(str, measured["grid"])), HEADER]
    naive = measured["forms"]["naive"]
    for name, figures in measured["forms"].items():
        line = f"{name:18s} {figures['parameters']:12,d} {figures['multiplications']:17,d}"
        if "skipped" in figures:
            lines.append(f"{line}   {figures['skipped']}")
            continue
        share = f"{figures['median_ms'] / naive['median_ms']:.2f}" if "median_ms" in naive else "-"
        lines.append(f"{line} {figures['temp_mib']:10.1f} {figures['median_ms']:10.2f} {share:>10s}")
    return "\n".join(lines) + "\n"


def main(argv: list[str]) -> int:
    """Measures every grid; returns the exit code."""
    options, grids = parse_flags(argv)
    measured = []
    for grid_shape in grids:
        measured.append(measure_grid(grid_shape, options))
        print(format_grid(measured[-1]), flush=True)
        command.write(options, grids=measured)
    return 0


run = functools.partial(command_line.run, main)  # prints an error in one line


if __name__ == "__main__":
    sys.exit(run(sys.argv))
