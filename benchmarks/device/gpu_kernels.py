"""Checks and times the kernels for GPUs, and what a user would take instead: what `launch/gpu_check.sh` runs.

  python -m benchmarks.device.gpu_kernels [--only=2d64] [--minutes=6] [--out=FOLDER] [--torch=PYTHON] [--quick]
  python -m benchmarks.device.gpu_kernels --show=benchmarks/results/DEVICE/kernels.json

Alone on the device, with nothing compiled before:

1. the seconds of a layer's first call and of its first gradient;
2. values and gradients of small problems of every kind against "reference" on the CPU (`gpu_problems.py`);
3. milliseconds forward and with backward, the median of five times up to 20 calls, and the temporary memory with
   backward. The gradients are those of q, k, v, E, u, v, and of a sigma for each head. In bfloat16 also cuDNN's
   attention of all pairs, and last FlexAttention with the window as its block mask; both know no positions. The Python
   of --torch runs FlexAttention, by default this one, if it has PyTorch. In some cases also "dense", with positions.

Every result is written at once, to OUT/DEVICE/kernels.json. --show prints the table of such a file. "ps a pair" is the
time for each pair, and each score of an offset, that the kernels compute: whole tiles. After --minutes no case is
timed. --quick runs tiny shapes, and on a CPU the emulator of a GPU's threads.

Exit codes: 0 done, 1 a problem disagrees, 2 wrong input or no GPU, 130 stopped by Ctrl-C.
"""

import concurrent.futures
import contextlib
import datetime
import functools
import math
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from absl import flags

from benchmarks.cpu.rivals import Torch
from benchmarks.device.gpu_problems import PROBLEMS, QUICK, compare_all
from benchmarks.device.machine import describe_device
from posattn_jax import (
    Content,
    ContentBias,
    GaussianSpan,
    Positional,
    PositionalBias,
    PositionalSelfAttention,
    SirenEncoding,
    relative_attention,
)
from posattn_jax.benchmarks.command import describe_machine
from posattn_jax.benchmarks.shapes import THRESHOLD, Point, input_shapes, make_inputs, parse_shape
from posattn_jax.benchmarks.table import markdown, number
from posattn_jax.benchmarks.timing import Compiled, Skipped, compile_ahead, failures_told, one_pass
from posattn_jax.ops.attention.cuda import library, program
from posattn_jax.system import command_line
from posattn_jax.system.compiler import digest
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import read_json, write_json

HEADS = 8
ROOT = pathlib.Path(__file__).parents[2]


class Case(NamedTuple):
    """What is timed; without a half-span there is no sigma."""

    shape: str
    half: int | None
    batch: int
    head_dim: int
    dtype: str
    rivals: tuple[str, ...] = ("cudnn", "flex")

    @property
    def name(self) -> str:
        """As --only meets it."""
        span = "all pairs" if self.half is None else f"half-span {self.half}"
        return f"{self.shape}, {span}, batch {self.batch}, {self.head_dim} features, {self.dtype}"

    @property
    def point(self) -> Point:
        """The grid and its span."""
        sizes = parse_shape(self.shape)
        return Point(self.shape, sizes, tuple(min(self.half or size, size - 1) for size in sizes))

    @property
    def window(self) -> tuple[int, ...] | None:
        """The half-span of each dimension."""
        return None if self.half is None else self.point.half

    @property
    def computed(self) -> int:
        """The pairs and scores of offsets that the kernels compute, over batch and heads, in whole tiles."""
        before = 3 - len(self.point.half)
        cost = program.least_cost((1,) * before + self.point.grid_shape, (0,) * before + self.point.half)
        return self.batch * HEADS * cost


# The goals first. Those with "dense" show whether XLA's attention is faster anywhere: on small grids, if at all.
CASES = (
    Case("2d64", 8, 8, 64, "bfloat16"),
    Case("2d64", 8, 8, 32, "bfloat16"),
    Case("2d32", 8, 40, 64, "bfloat16"),
    Case("2d128", 8, 2, 64, "bfloat16"),
    Case("2d256", 8, 1, 64, "bfloat16"),
    Case("3d32", 2, 1, 64, "bfloat16"),
    Case("2d32", None, 20, 8, "float32", ("dense",)),
    Case("1d65536", 512, 1, 64, "bfloat16"),
    Case("2d32", 4, 20, 8, "float32", ("dense",)),
    Case("2d32", None, 40, 64, "bfloat16", ("cudnn", "dense")),
    Case("2d16", None, 64, 64, "bfloat16", ("cudnn", "dense")),
    Case("2d8", None, 64, 64, "bfloat16", ("cudnn", "dense")),
    Case("2d8", None, 2, 8, "float32", ("dense",)),
    Case("1d32", None, 64, 8, "float32", ("dense",)),
)
QUICK_CASES = (Case("2d6x5", 2, 1, 8, "float32", ("dense",)),)


def define_flags() -> flags.FlagValues:
    """The flags, unparsed, apart from those of any other command."""
    values = flags.FlagValues()
    own: dict[str, Any] = {"flag_values": values}
    flags.DEFINE_string("only", "", "Problems and cases whose names have this in them.", **own)
    flags.DEFINE_string("implementation", "fused", "Of relative_attention.", **own)
    flags.DEFINE_float("minutes", 6, "Time no further case after this many minutes.", lower_bound=0, **own)
    flags.DEFINE_string("out", "benchmarks/results", "Parent of the folder of results, named after the device.", **own)
    flags.DEFINE_string("torch", sys.executable, "Python interpreter with torch, for FlexAttention.", **own)
    flags.DEFINE_string("show", None, "Only print the table of this file.", **own)
    flags.DEFINE_bool("quick", False, "Tiny shapes, on any device.", **own)
    return values


@contextlib.contextmanager
def fresh_machine() -> Iterator[None]:
    """Inside, nothing is kept that was compiled before."""
    before, is_kept = dict(os.environ), jax.config.values["jax_enable_compilation_cache"]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        jax.config.update("jax_enable_compilation_cache", False)
        try:
            yield
        finally:
            jax.config.update("jax_enable_compilation_cache", is_kept)
            os.environ.pop("XDG_CACHE_HOME")
            os.environ.update(before)


def first_calls(grid_shape: tuple[int, ...]) -> dict[str, Any]:
    """The seconds of a layer's init, its first call and its first gradient, one after the other; and whether it has a
    compiled kernel.
    """
    terms = (Content(), Positional(SirenEncoding()), ContentBias(), PositionalBias())
    layer: Any = PositionalSelfAttention(num_heads=HEADS, terms=terms, span=GaussianSpan(threshold=THRESHOLD))
    inputs = jnp.ones((2, *grid_shape, 8 * HEADS))
    jax.block_until_ready(inputs + 1)
    found = {}

    def timed(name, function, *arguments):
        started = time.perf_counter()
        results = jax.block_until_ready(function(*arguments))
        found[f"{name}_s"] = time.perf_counter() - started
        return results

    variables = timed("init", layer.init, jax.random.key(0), inputs)
    timed("first_call", jax.jit(layer.apply), variables, inputs)
    timed("first_gradient", jax.jit(jax.grad(lambda x: layer.apply(x, inputs).sum())), variables)
    return found | {"kernels": "attention_forward" in str(jax.make_jaxpr(layer.apply)(variables, inputs))}


def shapes_of(case: Case) -> dict[str, jax.ShapeDtypeStruct]:
    """The shapes of `make_arrays`."""
    sizes = input_shapes(case.point, case.batch, HEADS, case.head_dim)
    shapes = {name: jax.ShapeDtypeStruct(size, case.dtype) for name, size in sizes.items()}
    sigma = jax.ShapeDtypeStruct((HEADS, len(case.point.half)), "float32")
    return shapes if case.half is None else shapes | {"sigma": sigma}


def make_arrays(case: Case) -> dict[str, Any]:
    """Random arrays of `relative_attention`; sigma has the half-span, for each head."""
    arrays = make_inputs(case.point, case.batch, HEADS, case.head_dim, case.dtype)
    sigma = arrays.pop("sigma")
    return arrays if case.half is None else arrays | {"sigma": jnp.tile(sigma, (HEADS, 1))}


def milliseconds(call: Callable[[], Any], most: int = 20, at_least: float = 0.1) -> float:
    """The median time of a call, of five runs. In a run calls follow one another: `most`, or fewer if they are long."""

    def run(calls):
        started = time.perf_counter()
        for _ in range(calls):
            results = call()
        jax.block_until_ready(results)
        return 1e3 * (time.perf_counter() - started) / calls

    run(1)
    calls = max(2, min(most, math.ceil(1e3 * at_least / run(2))))
    return statistics.median(run(calls) for _ in range(5))


def measure(programs: list[concurrent.futures.Future[Compiled]], arrays: dict[str, Any]) -> dict[str, float]:
    """What attention with these arrays takes, forward and with backward; Skipped if it fails."""
    forward, both = (each.result() for each in programs)
    with failures_told():
        times = [milliseconds(lambda each=each: each.call(arrays, arrays["query"])) for each in (forward, both)]
    return figures(*times) | {"temporary_mib": both.temp_bytes / 2**20}


def figures(forward: float, both: float) -> dict[str, float]:
    """As the results have them."""
    return {"forward_ms": forward, "forward_backward_ms": both}


def or_absent(found: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The figures, or why there are none."""
    try:
        return found()
    except Skipped as reason:
        return {"absent": str(reason)}


def attend(case: Case, implementation: str) -> Callable:
    """Attention of some arrays with positions, and the case's span."""
    fields: dict[str, Any] = {"grid_shape": case.point.grid_shape, "threshold": THRESHOLD, "span_bound": case.window}
    fields["implementation"] = implementation
    return lambda arrays: relative_attention(**arrays, **fields)


def cudnn(arrays):
    """Attention of all pairs, which knows no positions."""
    return jax.nn.dot_product_attention(arrays["query"], arrays["key"], arrays["value"], implementation="cudnn")


def run_flex(case: Case, torch: Torch | None) -> dict[str, float]:
    """FlexAttention's figures; Skipped if it fails, or there is none."""
    if torch is None:
        raise Skipped("no PyTorch with a GPU")
    asked = {"shape": case.point.grid_shape, "half": case.window, "causal": False, "positions": False, "rival": "flex"}
    asked |= {"batch": case.batch, "heads": HEADS, "head_dim": case.head_dim, "dtype": case.dtype}
    times = []
    for backward in (False, True):
        torch.ask("prepare", asked | {"backward": backward})
        times.append(
            statistics.median(1e3 * torch.ask("run", asked | {"backward": backward})["seconds"] for _ in range(5))
        )
    return figures(*times)


def functions(case: Case, implementation: str) -> dict[str, tuple[Callable, tuple[str, ...] | None]]:
    """By ours and its rivals but FlexAttention: a function of arrays, and which of them it takes; None: all."""
    of = {
        implementation: (attend(case, implementation), None),
        "cudnn": (cudnn, ("query", "key", "value")),
        "dense": (attend(case, "dense"), None),
    }
    return {name: of[name] for name in (implementation, *case.rivals) if name in of}


def taken(arrays: dict[str, Any], names: tuple[str, ...] | None) -> dict[str, Any]:
    """The arrays of these names."""
    return arrays if names is None else {name: arrays[name] for name in names}


def begin(
    pool: concurrent.futures.Executor, case: Case, implementation: str
) -> dict[str, list[concurrent.futures.Future[Compiled]]]:
    """Begins to compile a case's programs, forward and with backward."""
    shapes = shapes_of(case)
    return {
        name: [
            pool.submit(compile_ahead, one_pass(function, backward), (taken(shapes, names), shapes["query"]), 40.0)
            for backward in (False, True)
        ]
        for name, (function, names) in functions(case, implementation).items()
    }


def measure_case(
    case: Case, implementation: str, programs: dict[str, list[concurrent.futures.Future[Compiled]]]
) -> dict[str, Any]:
    """The figures of ours, and by rival those of others but FlexAttention; or why they are "absent"."""
    arrays = make_arrays(case)
    found = {
        name: or_absent(functools.partial(measure, programs[name], taken(arrays, names)))
        for name, (_, names) in functions(case, implementation).items()
    }
    fields = {name: value for name, value in case._asdict().items() if name != "rivals"}
    return {**fields, "heads": HEADS, **found.pop(implementation), "rivals": found}


def format_first(first: dict[str, Any]) -> str:
    """A line."""
    seconds = ", ".join(f"{name} {first[f'{name}_s']:.1f} s" for name in ("init", "first_call", "first_gradient"))
    return f"{seconds}, {'with' if first['kernels'] else 'without'} a compiled kernel\n"


def format_times(times: list[dict[str, Any]]) -> str:
    """A Markdown table with a row for each case; ratios are ours / theirs, and less than 1 where ours is faster."""
    rivals = list(dict.fromkeys(name for each in times for name in each.get("rivals", {})))
    rows = [
        [
            "forward / with backward, ms",
            "ours",
            "MiB",
            "ps a pair",
            *(cell for name in rivals for cell in (name, "ours / it")),
        ]
    ]
    for each in times:
        case = Case(*(each[name] for name in Case._fields[:-1]))
        ours = _both(each)
        row = [case.name + "".join(f", {define}" for define in each.get("defines", ()))]
        row += [_cell(ours), number(each.get("temporary_mib")), _cell([x and 1e9 * x / case.computed for x in ours])]
        for name in rivals:
            other = _both(each.get("rivals", {}).get(name, {}))
            row += [_cell(other), _cell([x / y if x and y else None for x, y in zip(ours, other, strict=True)])]
        rows.append(row)
    absent = [
        f"- {name} is absent from {each['shape']}: {values['absent']}"
        for each in times
        for name, values in (("ours", each), *each.get("rivals", {}).items())
        if "absent" in values
    ]
    return "\n".join([markdown(rows), *absent])


def _both(values: dict[str, Any]) -> list[float | None]:
    return [values.get("forward_ms"), values.get("forward_backward_ms")]


def _cell(values: list[float | None]) -> str:
    return "-" if values == [None, None] else " / ".join(map(number, values))


def format_problems(problems: dict[str, dict[str, Any]]) -> str:
    """A Markdown table with the largest error of each problem; what disagrees is bold."""
    rows = [["against reference on the CPU", "error", "of"]]
    for name, found in problems.items():
        errors = found.get("errors", {})
        worst = max(errors, key=lambda each: math.inf if errors[each] is None else errors[each], default="-")
        error = found.get("failed") or ("no number" if found["error"] is None else f"{found['error']:.1e}")
        rows.append([name, error if found["agrees"] else f"**{error}**", worst])
    return markdown(rows)


def commit() -> str | None:
    """Git's, and whether files differ from it; None without Git."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return None
    return done.stdout.strip() or None


@contextlib.contextmanager
def with_torch(python: str) -> Iterator[Torch | None]:
    """The process of PyTorch, if the interpreter has it and a GPU."""
    asked = [python, "-c", "import sys, torch; sys.exit(not torch.cuda.is_available())"]
    try:
        has_torch = subprocess.run(asked, capture_output=True, check=False).returncode == 0
    except OSError:
        raise InputError(f"--torch={python}: it cannot be run") from None
    torch = Torch(python) if has_torch else None
    try:
        yield torch
    finally:
        if torch is not None:
            torch.process.kill()


def main(argv: list[str]) -> int:
    """Measures, and writes and prints what was found; returns the exit code."""
    options = command_line.parse(define_flags(), argv, str(__doc__))
    if options.show is not None:
        if (found := read_json(pathlib.Path(options.show))) is None:
            raise InputError(f"--show={options.show}: no such file")
        print(format_times(found["times"]))
        return 0
    is_gpu = jax.default_backend() == "gpu"
    if not is_gpu and not options.quick:
        raise InputError(
            f"no GPU: JAX has {jax.devices()[0].device_kind} alone. --quick runs tiny shapes on any device"
        )
    problems = {name: each for name, each in (QUICK if options.quick else PROBLEMS).items() if options.only in name}
    cases = [case for case in (QUICK_CASES if options.quick else CASES) if options.only in case.name]
    if not problems and not cases:
        raise InputError(f"--only={options.only}: no case has this in its name, such as {CASES[0].name}")
    with contextlib.ExitStack() as stack:
        if not is_gpu:
            from tests.support.lanes import on_lanes  # and pytest, which a machine with a GPU may lack

            stack.enter_context(on_lanes())
        return check(options, problems, cases)


def check(options: flags.FlagValues, problems: dict[str, Any], cases: list[Case]) -> int:
    """As `main`, with the kernels at hand."""
    started = time.monotonic()

    def is_late():
        return time.monotonic() - started > 60 * options.minutes

    machine = describe_machine()
    kind = machine["device"]["kind"]
    name = re.sub(r"[^a-z0-9]+", "_", kind.lower()) + ("_quick" if options.quick else "")
    folder = command_line.make_folder(f"{options.out}/{name}")
    assert folder is not None
    results: dict[str, Any] = {"device": kind, "versions": machine["versions"] | describe_device(), "commit": commit()}
    results |= {"kernels": digest(library.SOURCES, []), "implementation": options.implementation}
    results |= {"date": datetime.date.today().isoformat(), "first": {}, "problems": {}, "times": [], "left_out": []}
    file = folder / "kernels.json"
    with contextlib.nullcontext() if options.quick else fresh_machine():
        results["first"] = first_calls((6, 5) if options.quick else (32, 32))
        print(format_first(results["first"]), flush=True)
        write_json(file, results)
        for name, found in compare_all(problems, options.implementation):
            results["problems"][name] = found
            write_json(file, results)
        print(f"{format_problems(results['problems'])}\n", flush=True)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            begun = {} if is_late() else {case: begin(pool, case, options.implementation) for case in cases}
        for case in cases:  # all are compiled before one is timed
            if case not in begun or is_late():
                results["left_out"].append(case.name)
                continue
            results["times"].append(measure_case(case, options.implementation, begun[case]))
            write_json(file, results)
    # First the window in one dimension, which it does best. It compiles for long.
    rows = zip(cases, results["times"], strict=False)
    flexed = sorted((each for each in rows if "flex" in each[0].rivals), key=lambda each: "1d" not in each[0].shape)
    with with_torch(options.torch) if flexed else contextlib.nullcontext() as torch:
        for case, row in flexed:
            late = torch is not None and is_late()
            run_one = functools.partial(run_flex, case, torch)
            row["rivals"]["flex"] = {"absent": "no time was left"} if late else or_absent(run_one)
            write_json(file, results)
    print(format_times(results["times"]))
    for name in results["left_out"]:
        print(f"no time was left for {name}")
    wrong = [name for name, found in results["problems"].items() if not found["agrees"]]
    for name in wrong:
        print(f"disagrees with reference: {name}", file=sys.stderr)
    return 1 if wrong else 0


run = functools.partial(command_line.run, main)  # wrong input is told in one line


if __name__ == "__main__":
    sys.exit(run(sys.argv))
