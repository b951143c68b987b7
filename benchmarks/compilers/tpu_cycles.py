"""The cycles of attention on TPUs, estimated without a TPU by libtpu's simulator.

  python -m benchmarks.compilers.tpu_cycles [--targets=v5e,v6e] [--implementations=fused,tiled,dense,flash]
      [--shapes=2d64:8,1d8192:256] [--heads=1] [--head_dims=64] [--passes=forward,backward] [--seconds=900]
      [--out=FILE.json] [--into=docs/compiled_tpus.md]

Needs no TPU: pip install posattn_jax[tpu-aot]. The span is known while a program is compiled, as it is for an export.
For comparison there is JAX's flash attention, which uses no positions; it gets as many keys as there are in the blocks
that the window touches. There are also floors: the cycles of the products inside the spans in the matrix units, of exp
in the transcendental unit, and of the arrays at the memory's rate, by JAX's figures for each chip. With --out results
are kept; a case is compiled again if its source or a compiler has changed.

Exit codes: 0 done, 2 wrong input or no libtpu, 130 stopped by Ctrl-C.
"""

import sys
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from benchmarks.compilers import compiled, tpu_program
from benchmarks.compilers.compiled import PASSES, Case
from posattn_jax.benchmarks.roofline import work
from posattn_jax.benchmarks.table import markdown, number
from posattn_jax.system import command_line

IMPLEMENTATIONS = (*compiled.IMPLEMENTATIONS, "flash")
# For each chip the FLOPs, the bytes of memory and the results of exp per cycle, by JAX's figures: 197 and 920 TFLOP/s,
# 820 and 1,640 GB/s. Clocks: 1.5 GHz for v5e, at which its 4 units of 128 x 128 have these FLOPs. 1.75 GHz for v6e is
# not documented: at this clock 4 units of 256 x 256 would have these FLOPs.
CHIPS = {"v5e": (4 * 2 * 128**2, 820e9 / 1.5e9, 8 * 128), "v6e": (4 * 2 * 256**2, 1640e9 / 1.75e9, 8 * 128)}


def floors(case: Case) -> dict[str, float]:
    """The cycles that every program needs at least: for products, for arrays read and written once, and for exp."""
    itemsize = jnp.dtype(case.dtype).itemsize
    needed = work(case.point, case.batch, case.heads, case.head_dim, itemsize, case.backward)
    flops, size, exps = CHIPS[case.target]
    return {"products": needed.flops / flops, "memory": needed.bytes / size, "exp": needed.exps / exps}


def table(results: Mapping[Case, Mapping[str, Any]], versions: Mapping[str, str]) -> str:
    """Thousand cycles: a row for each case with its floor and all implementations; below, each fused kernel by name."""
    fields = ("shape", "half", "batch", "heads", "head_dim", "dtype", "target", "backward")
    implementations = [name for name in IMPLEMENTATIONS if any(case.implementation == name for case in results)]
    rows = [["grid: half-span", "b, h, d", "chip", "pass", "floor", *implementations]]
    for values in compiled.in_order(results, *fields):
        alike = {case.implementation: (case, each) for case, each in results.items() if _fields(case, fields) == values}
        case = next(iter(alike.values()))[0]
        cells = [thousands(total(alike[name][1])) if name in alike else "-" for name in implementations]
        kind, least = max(floors(case).items(), key=lambda each: each[1])
        rows.append([f"{case.shape}: {case.half}", _size(case), case.target, PASSES[case.backward]])
        rows[-1] += [f"{thousands(least)} ({kind})", *cells]
    dtypes = ", ".join(dict.fromkeys(case.dtype for case in results))
    told = [
        markdown(rows),
        f"Thousand cycles of {dtypes}, by the simulator of libtpu {versions['libtpu']} (jax {versions['jax']}). "
        f"backward: forward with backward. flash: JAX's flash attention, of blocks of {tpu_program.FLASH_BLOCK}.",
        kernels_table(results),
        "\n".join(compiled.absences(results)),
    ]
    return "\n\n".join(part for part in told if part) + "\n"


def _size(case: Case) -> str:
    return f"{case.batch}, {case.heads}, {case.head_dim}"


def kernels_table(results: Mapping[Case, Mapping[str, Any]]) -> str:
    """The thousand cycles of each kernel of the implementation "fused", and of XLA's code around them."""
    found = {
        case: each["cycles"] for case, each in results.items() if case.implementation == "fused" and "cycles" in each
    }
    if not found:
        return ""
    names = sorted({name for cycles in found.values() for name in cycles} - {"XLA"})
    rows = [["grid: half-span", "b, h, d", "chip", "pass", *names, "XLA, around them"]]
    for case, cycles in found.items():
        cells = [thousands(cycles.get(name)) for name in (*names, "XLA")]
        rows.append([f"{case.shape}: {case.half}", _size(case), case.target, PASSES[case.backward], *cells])
    return "By kernel:\n\n" + markdown(rows)


def total(figures: Mapping[str, Any]) -> int | None:
    """All cycles, if they are known."""
    return sum(figures["cycles"].values()) if "cycles" in figures else None


def thousands(cycles: float | int | None) -> str:
    """Thousand cycles with three digits; a dash for None."""
    return number(None if cycles is None else cycles / 1e3)


def _fields(case, names):
    return tuple(getattr(case, name) for name in names)


INSTRUMENT = compiled.Instrument(
    program=tpu_program.__name__,
    parts=("tpu_program",),
    targets=tuple(CHIPS),
    implementations=IMPLEMENTATIONS,
    packages=("jax", "libtpu"),
    table=table,
    mark="tpu_cycles",
    environment=tpu_program.ENVIRONMENT,
)


def main(argv: list[str]) -> int:
    """Returns the exit code."""
    values = compiled.define_flags(INSTRUMENT, shapes="2d64:8,1d8192:256", seconds=900.0)
    return compiled.main(argv, INSTRUMENT, values, str(__doc__))


def run(argv: list[str]) -> int:
    """Runs `main`, and prints wrong input in one line; returns the exit code."""
    return command_line.run(main, argv)


if __name__ == "__main__":
    sys.exit(run(sys.argv))
