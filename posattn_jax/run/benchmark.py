"""Times the updates of a config's training, for implementations of attention, dtypes, batch sizes and initial sigmas.

  python -m posattn_jax.main --mode=benchmark --config=configs/cifar2d_span.py:half --workdir=FOLDER
      [--implementations=auto,dense] [--dtypes=float32,bfloat16] [--batch_sizes=10,20] [--sigmas=.05,.3]
      [--steps=10 --repeats=3 --seconds=600 --memory_limit_gib=8] [--data=random|read] [--trace=FOLDER]

A timed run is a number of consecutive updates as in training, including the reading of data, on the mesh of the config.
The learning rate is 0, so that spans do not change. One more run is profiled.

For each row, the table and `results.json` have

- updates and examples per second: the median of the runs;
- MFU: the FLOPs per second that the model needs (forward once, backward twice, all pairs: see `update_flops`), as a
  share of the peak of the devices, which is that of their data sheet or, if unknown, of a measured matrix product;
- waiting: the share of the time in which the host waited for data;
- the shares of attention, feed-forward layers, optimiser and the rest in the time that instructions ran; and idle, the
  share of the whole time in which no instruction ran.
"""

import itertools
import pathlib
import statistics
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import flags
from ml_collections import ConfigDict

from posattn_jax.benchmarks import parts
from posattn_jax.benchmarks.command import describe_machine
from posattn_jax.benchmarks.operations import update_flops
from posattn_jax.benchmarks.roofline import PEAKS, measure_rates
from posattn_jax.benchmarks.table import measurement, number
from posattn_jax.benchmarks.timing import Compiled, Skipped, compile_ahead, interleave
from posattn_jax.config import experiment
from posattn_jax.config.names import short
from posattn_jax.config.parts import leaves, set_all
from posattn_jax.data.images.image_sets import LabelledImages
from posattn_jax.data.pipeline.batches import Ordered, Source
from posattn_jax.system import command_line
from posattn_jax.system.doing import doing
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import write_json
from posattn_jax.train.clock import Clock
from posattn_jax.train.program import Program, SpanBounds
from posattn_jax.train.seed_map import SeedData

# The updates of an epoch of random pixels.
RANDOM_UPDATES = 16

BASELINE = "dense"

SHARES = (*parts.PARTS, parts.REST, "idle")
ASKED = ("implementations", "steps", "repeats", "seconds", "memory_limit_gib", "data")


WIDTHS = ("initial_sigma", "initial_width")  # the fields of spans that --sigmas sets


class Kind(NamedTuple):
    """A row of the table. Rows that differ only in their implementation are compared."""

    implementation: str
    dtype: str
    batch_size: int
    initial_sigma: float | None


def kinds_of(options: flags.FlagValues, config: ConfigDict) -> list[Kind]:
    """The rows that the options ask for. Raises InputError if one is impossible."""
    initial_sigmas = [value for name in WIDTHS for value in leaves(config.model, name)][:1]
    if options.sigmas is not None and not initial_sigmas:
        raise InputError(f"--sigmas={','.join(options.sigmas)}: the model has no span to learn")
    lists: dict[str, list[Any]] = {
        "implementations": options.implementations,
        "dtypes": options.dtypes if options["dtypes"].present else [config.model.dtype],
        "batch_sizes": [config.train.batch_size],
        "sigmas": initial_sigmas or [None],
    }
    for name, kind in (("batch_sizes", int), ("sigmas", float)):
        if (given := options[name].value) is not None:
            lists[name] = command_line.numbers(f"--{name}", given, kind)
    return [Kind(*row) for row in itertools.product(*lists.values())]


def changed(config: ConfigDict, kind: Kind) -> ConfigDict:
    """The config of a row, with a learning rate of 0."""
    config = config.copy_and_resolve_references()
    config.optimizer.update(learning_rate=0.0, span_learning_rate=0.0, terms_learning_rate=0.0)
    config.train.batch_size = kind.batch_size
    config.model.dtype = kind.dtype
    set_all(config.model, implementation=kind.implementation, **dict.fromkeys(WIDTHS, kind.initial_sigma))
    return config


def make_source(config: ConfigDict, data: str, most_examples: int, workdir: pathlib.Path) -> Any:
    """The training examples of the config, or images of random pixels with the same shape."""
    if data == "read":
        return experiment.load_sources(config, workdir=workdir)["train"]
    images = experiment.data_set(config)
    if not isinstance(images, LabelledImages):
        raise InputError(f"data {short(config.data.kind)}: --data=random knows images; use --data=read")
    return images.random(max(1, RANDOM_UPDATES * most_examples))


class Updates:
    """The training of a row: compiled, and run for `steps` updates at a time.

    Attributes:
      task: the task that is trained.
      program: the program to time.
      hlo: the compiled HLO text.
      waited: for each run, the share of time in which it waited for data.
    """

    def __init__(self, config: ConfigDict, source: Source, steps: int, limit_gib: float, known: dict[Any, Compiled]):
        self.task, optimizer, mesh, settings = experiment.prepare(config, source)
        self._training = Program(self.task, optimizer, [SeedData(config.seed, source, source)], mesh, settings)
        self._state, self._batches = self._training.init(config.seed), [self._training.batches(0)]
        self.waited: list[float] = []
        self._steps, self._clock = steps, Clock(0)
        bounds = SpanBounds(self.task, self._state.params).value if settings.bounds_spans else None

        # A program reads sigma from its state, so rows with other sigmas share it, unless it has static bounds.
        key = *leaves(config.model, "implementation"), config.model.dtype, config.train.batch_size, bounds
        if key not in known:
            with jax.set_mesh(self._training.mesh):
                arguments = self._training.arguments(self._state, self._batches, 1, self._clock)
                known[key] = compile_ahead(self._training.updates(bounds), arguments, limit_gib)
        self._compiled = known[key]
        self.hlo = self._compiled.call.as_text()
        self.program = self._compiled.program(self._run)

    def _run(self) -> Any:
        self._clock.start_rate(0)
        training = self._training
        with jax.set_mesh(training.mesh):
            for done in range(0, self._steps, training.most):
                count = min(training.most, self._steps - done)
                arguments = training.arguments(self._state, self._batches, count, self._clock)
                self._state, figures = self._compiled.call(*arguments)
        finished = jax.block_until_ready((self._state, figures))
        self.waited.append(self._clock.waiting_share)
        return finished


def flops_of(config: ConfigDict, source: Source) -> int:
    """The FLOPs that the model needs for an update."""
    config = config.copy_and_resolve_references()
    config.mesh.grid = 1
    set_all(config.model, implementation="reference")
    task = experiment.make_task(config, source)
    batch = source.batch(np.arange(config.train.batch_size))
    params = jax.eval_shape(task.init, jax.random.key(0))
    return config.train.accumulation_steps * update_flops(lambda *of: task.loss(*of)[0], params, batch)


def peak_of(dtype: str) -> tuple[float, str]:
    """The peak FLOPs per second of all devices together, and the source of that figure."""
    kind = jax.devices()[0].device_kind
    if kind in PEAKS:
        return jax.device_count() * PEAKS[kind].flops_per_second[dtype], "data sheet"
    devices = 1 if jax.default_backend() == "cpu" else jax.device_count()  # virtual ones share the cores
    return devices * measure_rates(dtype).flops_per_second[dtype], "measured, a product of matrices"


def measure(options: flags.FlagValues, config: ConfigDict, workdir: pathlib.Path) -> Iterator[dict[str, Any]]:
    """Yields "rows" and what they have in common, as far as measured: once all are timed, and after each profile."""
    kinds = kinds_of(options, config)
    per_update = config.train.accumulation_steps * max(kind.batch_size for kind in kinds)
    source = make_source(config, options.data, per_update, workdir)
    if isinstance(source, Ordered):
        raise InputError(f"task {short(config.task.kind)}: its batches have several shapes, and a benchmark times one")
    compiled: dict[Any, Compiled] = {}
    rows: dict[Kind, dict[str, Any]] = {kind: kind._asdict() for kind in kinds}
    timed: dict[Kind, Updates] = {}
    for kind, row in rows.items():
        try:
            with doing(f"compiling {name_of(kind)}"):
                timed[kind] = Updates(changed(config, kind), source, options.steps, options.memory_limit_gib, compiled)
        except Skipped as reason:
            row["skipped"] = str(reason)
    with doing("timing"):
        times = interleave([updates.program for updates in timed.values()], options.repeats, options.seconds)
    peaks = {dtype: peak_of(dtype) for dtype in dict.fromkeys(kind.dtype for kind in timed)}
    flops = {size: flops_of(changed(config, kind), source) for size, kind in {k.batch_size: k for k in kinds}.items()}
    for (kind, updates), each in zip(timed.items(), times, strict=True):
        row = rows[kind]
        row |= measurement(updates.program, [seconds / options.steps for seconds in each])
        row["waiting"] = statistics.median(updates.waited[1:])  # not of the run that warmed up
        row["steps_per_second"] = 1e3 / row["median_ms"]
        row["examples_per_second"] = row["steps_per_second"] * config.train.accumulation_steps * kind.batch_size
        row["model_flops"] = flops[kind.batch_size]
        row["utilisation"] = row["model_flops"] * row["steps_per_second"] / peaks[kind.dtype][0]
    for kind in timed:
        to_beat = rows.get(kind._replace(implementation=BASELINE), {}).get("median_ms")
        rows[kind]["speed_up"] = to_beat and to_beat / rows[kind]["median_ms"]
    task = next((updates.task for updates in timed.values()), None)
    measured = {
        "unit": task.unit if task else "examples",
        "grid_shape": list(task.grid_shape) if task else None,
        "peak_flops_per_second": {dtype: {"value": value, "from": how} for dtype, (value, how) in peaks.items()},
        "rows": list(rows.values()),
    }
    yield measured
    for kind, updates in timed.items():
        folder = None if options.trace is None else pathlib.Path(options.trace, name_of(kind))
        try:
            with doing(f"profiling {name_of(kind)}"):
                rows[kind]["parts"] = parts.measure(updates.program.run, updates.hlo, folder)
        except Skipped as reason:
            rows[kind]["not_profiled"] = str(reason)
        yield measured


def name_of(kind: Kind) -> str:
    """The name of a row, and of the folder of its profile."""
    sigma = "" if kind.initial_sigma is None else f"_sigma_{kind.initial_sigma:g}"
    return f"{kind.implementation}_{kind.dtype}_batch_{kind.batch_size}{sigma}"


def format_rows(rows: list[dict[str, Any]], unit: str) -> str:
    """The table as text. Below it, the reason why each skipped row, or its shares, are missing."""
    plain = {
        "batch_size": "batch",
        "initial_sigma": "sigma",
        "steps_per_second": "steps/s",
        "examples_per_second": f"{unit}/s",
        "speed_up": f"x {BASELINE}",
        "median_ms": "ms/step",
        "temp_mib": "temp MiB",
        "compile_seconds": "compile s",
    }
    cells = [["", "", *plain.values(), "MFU", "waiting", *SHARES]]
    for row in rows:
        figures = [row.get("utilisation"), row.get("waiting"), *(row.get("parts", {}).get(part) for part in SHARES)]
        percent = ["-" if figure is None else f"{figure:.1%}" for figure in figures]
        cells.append([row["implementation"], row["dtype"], *(number(row.get(key)) for key in plain), *percent])
    lines = [f"  {first:<12}{second:<10}" + "".join(f"{cell:>13}" for cell in rest) for first, second, *rest in cells]
    for why, said in {"skipped": "skipped", "not_profiled": "without shares"}.items():
        lines += [f"  {row['implementation']} {row['dtype']} {said}: {row[why]}" for row in rows if why in row]
    return "\n".join(lines)


def benchmark(options: flags.FlagValues, config: ConfigDict, workdir: pathlib.Path) -> None:
    """Measures, and prints the table. `results.json` is written once all rows are timed, and after each profile.

    Raises:
      InputError: something cannot be measured as asked for.
    """
    command_line.make_folder(str(workdir), "workdir")
    command_line.make_folder(options.trace, "trace")
    asked = {name: options[name].value for name in ASKED}
    common = {"options": asked, **describe_machine(), "config": config.to_dict()}
    measured: dict[str, Any] = {}
    try:
        for measured in measure(options, config, workdir):
            write_json(workdir / "results.json", common | measured)
    finally:  # the times are shown without profiles too
        if measured:
            grid = " x ".join(str(size) for size in measured["grid_shape"] or ["?"])
            print(
                f"updates of {config.train.accumulation_steps} micro-batches, {grid} positions, {jax.device_count()} x "
                f"{jax.devices()[0].device_kind}\n{format_rows(measured['rows'], measured['unit'])}"
            )
