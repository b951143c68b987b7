"""Times our attention against what a user would pick instead, by turns.

  python -m benchmarks.cpu.rivals [--cases=2d64_half8,...] [--head_dims=8,32,64,128] [--passes=forward,forward_backward]
      [--rivals=native,portable,jax,sdpa,flex] [--torch=PYTHON] [--batch=2 --heads=8 --dtype=float32]
      [--repeats=15 --seconds=60] [--out=FOLDER]

A case is a grid, a span, and whether relative vectors are met. Ours attend within the span: "native"; "portable", what
"auto" has where there is no compiler; "dense" and "tiled". The others attend to all pairs and know no positions: "jax",
`jax.nn.dot_product_attention`; and of PyTorch, run by the Python of --torch, "sdpa". "flex", compiled FlexAttention,
has the span as a mask of blocks, and one learned number an offset where ours have vectors. PyTorch's process is stopped
while it is not its turn.

GFLOP/s count the products of the pairs that a rival is asked for: 4 d of a pair in the forward pass and 14 d with the
backward pass, or 6 d and 22 d where relative vectors are met. Prints a table; with --out also `results.json`. Exit
codes: 0 done, 2 wrong input, 130 stopped by Ctrl-C.
"""

import functools
import json
import math
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import flags

from posattn_jax.benchmarks import command, table
from posattn_jax.benchmarks.shapes import THRESHOLD, Point, make_inputs
from posattn_jax.benchmarks.timing import MIN_ROUNDS, Skipped, one_pass, prepare, seconds
from posattn_jax.ops.attention import Problem, relative_attention
from posattn_jax.ops.attention.select import portable_attention
from posattn_jax.system import command_line
from posattn_jax.system.errors import InputError


class Case(NamedTuple):
    """What is attended to; a half-span of None is no span."""

    shape: tuple[int, ...]
    half: tuple[int, ...] | None = None
    positions: bool = True
    causal: bool = False

    def pairs(self, within_span: bool) -> int:
        """Those asked for."""
        n = math.prod(self.shape)
        if self.half is not None and within_span:
            return Point("", self.shape, self.half).pairs
        return n * (n + 1) // 2 if self.causal else n * n


CASES = {
    "2d64_half8": Case((64, 64), (8, 8)),
    "1d1024_half51": Case((1024,), (51,)),
    "2d32_half4": Case((32, 32), (4, 4)),
    "2d32_half2": Case((32, 32), (2, 2)),
    "2d16_half2": Case((16, 16), (2, 2)),
    "2d8_half2": Case((8, 8), (2, 2)),
    "3d16_half2": Case((16, 16, 16), (2, 2, 2)),
    "2d64": Case((64, 64)),
    "2d32": Case((32, 32)),
    "1d1024": Case((1024,)),
    "1d1024_plain": Case((1024,), positions=False),
    "1d1024_plain_causal": Case((1024,), positions=False, causal=True),
    "2d64_plain": Case((64, 64), positions=False),
}
OURS = ("native", "portable", "dense", "tiled")
OF_TORCH = ("sdpa", "flex")
RIVALS = (*OURS, "jax", *OF_TORCH)


def define_flags() -> flags.FlagValues:
    """The flags, unparsed."""
    values = command.define_flags(repeats=15, seconds=60.0)
    own: dict[str, Any] = {"flag_values": values}
    flags.DEFINE_list("cases", list(CASES), f"Cases to time, out of {', '.join(CASES)}.", **own)
    flags.DEFINE_list(
        "rivals", ["native", "portable", "jax"], f"Implementations to time, out of {', '.join(RIVALS)}.", **own
    )
    flags.DEFINE_list("passes", list(table.PASSES), f"Passes to time, out of {', '.join(table.PASSES)}.", **own)
    flags.DEFINE_list("head_dims", ["8", "32", "64", "128"], "Features per head.", **own)
    flags.DEFINE_string("torch", None, "Python interpreter with torch, for sdpa and flex.", **own)
    for name, default in (("batch", 2), ("heads", 8)):
        flags.DEFINE_integer(name, default, "A size of the arrays.", lower_bound=1, **own)
    flags.DEFINE_enum("dtype", "float32", ["float32", "bfloat16"], "Data type of all arrays except sigma.", **own)
    return values


def parse_flags(argv: list[str]) -> flags.FlagValues:
    """The flags; InputError for anything wrong with them."""
    options = command.parse(define_flags(), argv, str(__doc__))
    for name, known in (("cases", CASES), ("rivals", RIVALS), ("passes", table.PASSES)):
        for each in getattr(options, name):
            if each not in known:
                raise InputError(f"--{name}={each}: expected some of {', '.join(known)}")
    command_line.numbers("--head_dims", options.head_dims, least=1)
    if options.torch is None and set(options.rivals) & set(OF_TORCH):
        raise InputError("--torch is not given: expected a Python interpreter with torch, for sdpa and flex")
    return options


class Torch:
    """The process that runs PyTorch, stopped between its turns: its threads would spin."""

    def __init__(self, python: str):
        script = pathlib.Path(__file__).with_name("rivals_torch.py")
        self.process = subprocess.Popen([python, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, what: str, case: dict[str, Any]) -> dict[str, Any]:
        """Its answer; Skipped where that is an error."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.send_signal(signal.SIGCONT)
        print(json.dumps({what: case}), file=self.process.stdin, flush=True)
        answer = json.loads(self.process.stdout.readline() or '{"error": "the process of PyTorch ended"}')
        self.process.send_signal(signal.SIGSTOP)
        if "error" in answer:
            raise Skipped(answer["error"])
        return answer


def ours(rival: str, case: Case, arrays: dict[str, jax.Array]) -> Any:
    """Outputs of a rival that runs in this process."""
    if rival == "jax":
        return jax.nn.dot_product_attention(arrays["query"], arrays["key"], arrays["value"], is_causal=case.causal)
    options: dict[str, Any] = {"grid_shape": case.shape, "threshold": THRESHOLD, "is_causal": case.causal}
    if rival == "portable":
        return portable_attention(Problem(**arrays, **options))[0]
    return relative_attention(**arrays, **dict(options, implementation=rival))


def make_run(
    rival: str, case: Case, backward: bool, head_dim: int, options: flags.FlagValues, torch: Torch | None
) -> tuple[Callable[[], float], dict[str, Any]]:
    """What runs a rival once and returns the seconds, and what there is to know of it before."""
    sizes = {"batch": options.batch, "heads": options.heads, "head_dim": head_dim}
    if rival in OF_TORCH:
        assert torch is not None
        asked = {**case._asdict(), **sizes, "dtype": options.dtype, "backward": backward, "rival": rival}
        return lambda: torch.ask("run", asked)["seconds"], torch.ask("prepare", asked)
    point = Point("", case.shape, case.half or tuple(size - 1 for size in case.shape))
    arrays = make_inputs(point, options.batch, options.heads, head_dim, options.dtype)
    if case.half is None or rival == "jax":
        del arrays["sigma"]
    if not case.positions or rival == "jax":
        for name in ("relative_encoding", "content_bias", "position_bias"):
            del arrays[name]
    function = one_pass(functools.partial(ours, rival, case), backward)
    program = prepare(function, (arrays, arrays["query"]), options.memory_limit_gib)
    known = {"temp_mib": program.temp_bytes / 2**20, "compile_seconds": program.compile_seconds}
    return functools.partial(seconds, program.run), known


def measure(case: Case, backward: bool, head_dim: int, options: flags.FlagValues, torch: Torch | None) -> dict:
    """What was measured of every rival, or why one was "skipped"."""
    runs, figures = {}, {}
    for rival in options.rivals:
        try:
            runs[rival], figures[rival] = make_run(rival, case, backward, head_dim, options, torch)
        except Skipped as reason:
            figures[rival] = {"skipped": str(reason)}
    a_round = sum(run() for run in runs.values())
    order, times = np.random.default_rng(0), {rival: [] for rival in runs}
    for _ in range(min(options.repeats, max(MIN_ROUNDS, int(options.seconds / max(a_round, 1e-6))))):
        for rival in order.permutation(list(runs)):
            times[rival].append(runs[rival]())
    for rival, taken in times.items():
        lower, median, upper = np.percentile(taken, [25, 50, 75]) * 1e3
        within, vectors = rival in (*OURS, "flex"), rival in OURS and case.positions
        products = (22 if vectors else 14) if backward else (6 if vectors else 4)
        flops = products * head_dim * options.batch * options.heads * case.pairs(within)
        figures[rival] |= {"median_ms": median, "quartiles_ms": [lower, upper], "repeats": len(taken)}
        figures[rival]["gflops"] = flops / median / 1e6
    return figures


def format_row(case: str, head_dim: int, passed: str, figures: dict[str, dict[str, Any]]) -> str:
    """A line: ms, and GFLOP/s in brackets."""
    cells = [
        f"{rival} {table.number(each['median_ms'])} ({table.number(each['gflops'])})"
        if "median_ms" in each
        else f"{rival} skipped: {each['skipped']}"
        for rival, each in figures.items()
    ]
    return f"{case:20} d {head_dim:<4}{passed:18} " + "   ".join(cells)


def main(argv: list[str]) -> int:
    """Measures every case; returns the exit code."""
    options = parse_flags(argv)
    torch = Torch(options.torch) if options.torch else None
    measured = []
    print("ms (GFLOP/s)")
    try:
        for case in options.cases:
            for head_dim in map(int, options.head_dims):
                for passed in options.passes:
                    figures = measure(CASES[case], passed == "forward_backward", head_dim, options, torch)
                    measured.append({"case": case, "head_dim": head_dim, "pass": passed, "rivals": figures})
                    print(format_row(case, head_dim, table.PASSES[passed], figures), flush=True)
                    command.write(options, points=measured)
    finally:
        if torch is not None:
            torch.process.kill()
    return 0


run = functools.partial(command_line.run, main)  # wrong input is told in one line


if __name__ == "__main__":
    sys.exit(run(sys.argv))
