"""The common parts of the commands that inspect compiled programs: cases, a process for each, kept results, tables.

A compiler can compile for a device that is not there, if it gets a description of it. The figures are not measurements;
they serve to compare programs.
"""

import ast
import hashlib
import io
import json
import operator
import pathlib
import re
import subprocess
import sys
import tokenize
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from typing import Any, NamedTuple

from absl import flags

from posattn_jax.benchmarks import command
from posattn_jax.benchmarks.shapes import Point, input_shapes, parse_shape
from posattn_jax.benchmarks.table import put_into
from posattn_jax.system import command_line
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import read_json, write_json
from posattn_jax.system.processes import child_environment

HERE = pathlib.Path(__file__).parent
PACKAGE = HERE.parents[1] / "posattn_jax"
PASSES = ("forward", "backward")  # backward includes forward
IMPLEMENTATIONS = ("fused", "tiled", "dense")  # ours
KERNELS = {"gpu": "cuda", "tpu": "tpu", "cpu": "cpu"}  # the folders of those of each device
OF_FUSED = {"fused.py", "platform.py", *KERNELS.values()}
SOURCES = (".py", ".h", ".cu", ".cc")
CHOOSING = {"select.py", "trial.py", "verdict.py"}  # of an implementation: they are in no program of a named one
ORDER = operator.attrgetter("target", "shape", "half", "head_dim", "backward")  # the rows of tables
# For every process: compilers look for no device, inherit no flags, and print the error last.
OF_ALL = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "", "JAX_TRACEBACK_FILTERING": "off"}


class Case(NamedTuple):
    """A program to compile.

    Attributes:
      target: the device, such as "v5e".
      implementation: one of `relative_attention`, or another attention that it is compared with.
      shape, half: a grid, as "2d64", and its half-span in positions in every dimension.
      batch, heads, head_dim, dtype: those of the features.
      backward: whether the gradients of all arrays are computed too.
    """

    target: str
    implementation: str
    shape: str
    half: int
    batch: int
    heads: int
    head_dim: int
    dtype: str
    backward: bool

    @property
    def point(self) -> Point:
        """The grid and its span."""
        sizes = parse_shape(self.shape)
        return Point(self.shape, sizes, tuple(min(self.half, size - 1) for size in sizes))

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of all arrays except sigma."""
        return input_shapes(self.point, self.batch, self.heads, self.head_dim)


class Instrument(NamedTuple):
    """The properties of one of the commands.

    Attributes:
      program: the module that compiles a case, given as JSON, and prints its figures as JSON.
      parts: modules of this folder that the figures depend on, in addition to those of every instrument.
      targets, implementations: the names that are allowed.
      packages: the packages whose versions the figures depend on.
      table: a function from results by case to Markdown.
      mark: the tables are between "<!-- MARK -->" and "<!-- /MARK -->" in the page.
      environment: the environment variables of the processes.
    """

    program: str
    parts: Sequence[str]
    targets: Sequence[str]
    implementations: Sequence[str]
    packages: Sequence[str]
    table: Callable[[dict[Case, dict[str, Any]], Mapping[str, str]], str]
    mark: str
    environment: Mapping[str, str]

    @property
    def device(self) -> str:
        """The kind of device, "gpu" or "tpu"."""
        return self.mark.partition("_")[0]

    @property
    def versions(self) -> dict[str, str]:
        """The versions of the compilers; InputError if one is missing."""
        try:
            return {name: metadata.version(name) for name in self.packages}
        except metadata.PackageNotFoundError as error:
            raise InputError(f"{error.name} is missing: pip install posattn_jax[{self.device}-aot]") from error


def define_flags(instrument: Instrument, shapes: str, seconds: float) -> flags.FlagValues:
    """The flags, unparsed, in a registry of their own."""
    values = flags.FlagValues()
    own: dict[str, Any] = {"flag_values": values}
    for name in ("targets", "implementations"):
        allowed = list(getattr(instrument, name))
        flags.DEFINE_list(name, allowed, f"Some of {', '.join(allowed)}.", **own)
    flags.DEFINE_list("shapes", shapes.split(","), "Grids with half-spans in positions, as 2d64:8.", **own)
    flags.DEFINE_list("head_dims", ["64"], "Features per head.", **own)
    flags.DEFINE_list("passes", list(PASSES), "Passes: forward, or backward (forward and backward together).", **own)
    flags.DEFINE_integer("batch", 1, "Batch.", lower_bound=1, **own)
    flags.DEFINE_integer("heads", 1, "Heads.", lower_bound=1, **own)
    flags.DEFINE_enum("dtype", "bfloat16", ["bfloat16", "float32"], "Data type of all arrays except sigma.", **own)
    flags.DEFINE_float("seconds", seconds, "Time limit per case, after which it is given up.", lower_bound=0, **own)
    flags.DEFINE_string("out", None, "File for the results; those of unchanged code are kept.", **own)
    flags.DEFINE_string("into", None, "Page to put the tables into, with all results of --out.", **own)
    return values


def cases(options: flags.FlagValues, instrument: Instrument) -> list[Case]:
    """The cases that the options ask for; InputError for invalid ones."""
    known = {name: getattr(instrument, name) for name in ("targets", "implementations")} | {"passes": PASSES}
    for flag, allowed in known.items():
        for name in getattr(options, flag):
            if name not in allowed:
                raise InputError(f"--{flag}={name}: expected some of {', '.join(allowed)}")
    points, sizes = [], (options.batch, options.heads)
    for given in options.shapes:
        shape, colon, half = given.partition(":")
        if not colon or not half.isdecimal():
            raise InputError(f"--shapes={given}: expected a grid and a half-span in positions, such as 2d64:8")
        parse_shape(shape)
        points.append((shape, int(half)))
    return [
        Case(target, implementation, shape, half, *sizes, head_dim, options.dtype, name == "backward")
        for shape, half in points
        for head_dim in command_line.numbers("--head_dims", options.head_dims, least=1)
        for name in options.passes
        for target in options.targets
        for implementation in options.implementations
    ]


def source_of(case: Case, instrument: Instrument) -> str:
    """The SHA-256 of the code that a case depends on: the instrument, and the implementations if it is one of ours."""
    used = [PACKAGE / "benchmarks" / f"{name}.py" for name in ("shapes", "timing")]
    used += [HERE / f"{name}.py" for name in ("hlo", *instrument.parts)]
    if case.implementation in IMPLEMENTATIONS:
        is_fused = case.implementation == "fused"
        apart = set(KERNELS.values()) - {KERNELS[instrument.device]} if is_fused else OF_FUSED
        ours = sorted(path for path in (PACKAGE / "ops").rglob("*") if path.suffix in SOURCES)
        used += [path for path in ours if not (apart | CHOOSING) & set(path.relative_to(PACKAGE).parts)]
    return hashlib.sha256("\0".join(map(_code, used)).encode()).hexdigest()


def _code(path: pathlib.Path) -> str:
    """The lines of a module without comments, docstrings and blank lines: the same in every version of Python.

    Other sources as they are.
    """
    text = path.read_text()
    if path.suffix != ".py":
        return text
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            for row in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1):
                lines[row - 1] = ""
    return "\n".join(line.rstrip() for line in lines if line.strip())


def figures_of(case: Case, instrument: Instrument, seconds: float) -> dict[str, Any]:
    """The figures from a separate process; {"absent": REASON} if it fails."""
    process = [sys.executable, "-m", instrument.program, json.dumps(case)]
    environment = child_environment() | {**instrument.environment, **OF_ALL}
    try:
        done = subprocess.run(process, env=environment, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return {"absent": f"no answer after {seconds:g} s"}
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    told = [line.strip() for line in done.stderr.splitlines()]
    first_fatal = next((line.partition("] ")[2] for line in told if re.match(r"F\d{4} ", line)), None)
    reason = first_fatal or next((line for line in reversed(told) if line), f"exit code {done.returncode}")
    return {"absent": " ".join(reason.split())[:200]}


def main(argv: list[str], instrument: Instrument, values: flags.FlagValues, about: str) -> int:
    """Compiles each case without a kept result, prints the tables, and puts them into a page; returns the exit code."""
    options = command_line.parse(values, command.with_present_flags(argv), about)
    asked, versions = cases(options, instrument), instrument.versions
    path = None if options.out is None else pathlib.Path(options.out)
    kept = read_json(path) if path is not None else None
    kept = kept if kept is not None and kept["versions"] == versions else {"versions": versions, "cases": []}
    results = {Case(*row["case"]): row for row in kept["cases"]}
    for case in asked:
        source = source_of(case, instrument)
        if case not in results or results[case]["source"] != source:
            print(*case[:-1], PASSES[case.backward], file=sys.stderr, flush=True)
            figures = figures_of(case, instrument, options.seconds)
            results[case] = {"case": case, "source": source, **figures}
            if path is not None:
                write_json(path, {"versions": versions, "cases": list(results.values())})
    shown = results if path is not None else {case: results[case] for case in asked}
    text = instrument.table({case: shown[case] for case in sorted(shown, key=ORDER)}, versions)
    print(text)
    if options.into is not None:
        put_into(pathlib.Path(options.into), instrument.mark, text)
    return 0


def absences(results: Mapping[Case, Mapping[str, Any]]) -> list[str]:
    """A line for every reason why results are absent, with the cases."""
    reasons: dict[str, list[str]] = {}
    for case, figures in results.items():
        if "absent" in figures:
            where = f"{case.implementation}, {case.target}, {case.shape}, {case.head_dim} features"
            reasons.setdefault(figures["absent"], []).append(f"{where}, {PASSES[case.backward]}")
    return [f"- {'; '.join(where)}: {reason}." for reason, where in reasons.items()]


def in_order(results: Iterable[Case], *fields: str) -> list[tuple[Any, ...]]:
    """The distinct values of these fields, in the order of the results."""
    return list(dict.fromkeys(tuple(getattr(case, name) for name in fields) for case in results))
