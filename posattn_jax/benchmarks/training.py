"""Times the updates of a config's training, by the layout of attention, the dtype, and the span that it starts from.

  python -m posattn_jax.benchmarks.training --config=configs/cifar2d_span.py:half [--implementations=auto,dense]
      [--dtypes=float32,bfloat16] [--sigmas=.05,.3] [--steps=5 --repeats=3 --seconds=600 --memory_limit_gib=8]
      [--data=made|read] [--parts [--trace=FOLDER]] [--out=FOLDER] [--config.train.batch_size=10 ...]

A run is so many updates, each from the one before, on one device and one batch; the learning rate is 0, so that spans
stay. With --parts one run more is profiled: shares of attention, feed-forward and the optimiser of the time that
instructions ran, and of the whole time in which none did; --trace keeps what Perfetto (ui.perfetto.dev) shows. Prints a
table; with --out also `results.json`. Exit codes: 0 done, 2 wrong input, 130 stopped by Ctrl-C.
"""

import dataclasses
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from ml_collections import ConfigDict, config_flags

from posattn_jax import command_line, experiment
from posattn_jax.benchmarks import parts
from posattn_jax.benchmarks.machine import describe_machine
from posattn_jax.benchmarks.table import measurement, number
from posattn_jax.benchmarks.timing import Program, Skipped, compile_ahead, interleave
from posattn_jax.data.images import GridImages, ImageSet
from posattn_jax.errors import InputError
from posattn_jax.files import write_json
from posattn_jax.train.loop import Settings
from posattn_jax.train.step import init_state, make_train_step

# Height, width and channels of the sets whose images can be made of random pixels.
IMAGE_SHAPES = {"cifar10": (32, 32, 3), "digits": (8, 8, 1)}

BASELINE = "dense"

COLUMNS = {
    "initial_sigma": "sigma",
    "steps_per_second": "steps/s",
    "images_per_second": "images/s",
    "speed_up": f"x {BASELINE}",
    "median_ms": "ms/step",
    "temp_mib": "temp MiB",
    "compile_seconds": "compile s",
}
SHARES = (*parts.PARTS, parts.REST, "idle")


def define_flags(argv: list[str]) -> flags.FlagValues:
    """The flags, unparsed, apart from those of any other command."""
    values = flags.FlagValues()
    own = {"flag_values": values}
    config_flags.DEFINE_config_file("config", None, "The config file, with a variant.", sys_argv=argv, **own)
    flags.DEFINE_list("implementations", ["auto", "dense"], "Values of model.implementation.", **own)
    flags.DEFINE_list("dtypes", None, "Values of model.dtype; by default the config's.", **own)
    flags.DEFINE_bool("parts", False, "Profile a run more: what its time goes into.", **own)
    flags.DEFINE_string("trace", None, "The folder that keeps the profiles, with --parts.", **own)
    flags.DEFINE_list("sigmas", None, "Values of model.span.initial_sigma; by default the config's.", **own)
    flags.DEFINE_integer("steps", 5, "Updates of a run.", lower_bound=1, **own)
    flags.DEFINE_integer("repeats", 3, "Runs of each, fewer where --seconds is short.", lower_bound=1, **own)
    flags.DEFINE_float("seconds", 600, "To spend on all runs, though at least three each.", **own)
    flags.DEFINE_float("memory_limit_gib", 8, "Layouts that need more temporary memory are skipped.", **own)
    flags.DEFINE_enum("data", "made", ["made", "read"], "Random pixels, or the config's data set.", **own)
    flags.DEFINE_string("out", None, "The folder for results.json.", **own)
    return values


def parse_flags(argv: list[str]) -> tuple[flags.FlagValues, ConfigDict, Sequence[float | None]]:
    """The flags, the config and the initial sigmas, [None] without a span; InputError for anything wrong with them."""
    options = define_flags(argv)
    command_line.check_no_more(command_line.parse_with_config(options, argv)[1:])
    command_line.check_config_given(options.config)
    config = options.config
    options["dtypes"].value = options.dtypes if options["dtypes"].present else [config.model.dtype]
    for name in ("implementations", "dtypes"):
        if not options[name].value:
            raise InputError(f"--{name} is empty: expected at least one")
    if options.trace is not None and not options.parts:
        raise InputError(f"--trace={options.trace}: expected --parts, whose profiles it keeps")
    if config.task != "classification":
        raise InputError(f'task="{config.task}": expected "classification", whose layers have attention')
    config.optimizer.learning_rate = 0.0
    if options.sigmas is None:
        return options, config, [config.model.span.initial_sigma if config.model.span.enabled else None]
    if not config.model.span.enabled:
        raise InputError(f"--sigmas={','.join(options.sigmas)}: model.span.enabled is False")
    try:
        sigmas = [float(sigma) for sigma in options.sigmas]
    except ValueError as error:
        raise InputError(f"--sigmas={','.join(options.sigmas)}: expected numbers") from error
    if not sigmas or not np.all(np.isfinite(sigmas)):
        raise InputError(f"--sigmas={','.join(options.sigmas)}: expected at least one, each finite")
    return options, config, sigmas


def make_source(config: ConfigDict, data: str) -> experiment.Labelled:
    """The config's training images, or as many as an update needs, of the same shape, made of random pixels."""
    if data == "read":
        return experiment.load_sources(config)["train"]
    if config.data.name not in IMAGE_SHAPES:
        raise InputError(
            f'data.name="{config.data.name}": --data=made knows {", ".join(IMAGE_SHAPES)}; use --data=read'
        )
    rng = np.random.default_rng(0)
    num_images = max(1, config.train.batch_size * config.train.accumulation_steps)
    images = rng.integers(0, 256, (num_images, *IMAGE_SHAPES[config.data.name]), np.uint8)
    return experiment.lay_out(config, ImageSet(images, rng.integers(0, 10, num_images), num_classes=10))


def make_batch(source: GridImages, settings: Settings) -> dict[str, jax.Array]:
    """The batch of one update: arrays [micro-batches, examples, ...]."""
    if len(source) < settings.examples_per_step:
        raise InputError(
            f"a batch of {settings.examples_per_step} cannot be drawn from {len(source)} training examples"
        )
    batch = source.batch(np.arange(settings.examples_per_step))
    parts = (settings.accumulation_steps, settings.batch_size)
    return {name: jnp.asarray(array).reshape(*parts, *array.shape[1:]) for name, array in batch.items()}


def changed(config: ConfigDict, implementation: str, dtype: str, sigma: float | None) -> ConfigDict:
    """The config with another layout and dtype and, where it has a span, another initial sigma."""
    config = config.copy_and_resolve_references()
    config.model.implementation, config.model.dtype = implementation, dtype
    if sigma is not None:
        config.model.span.initial_sigma = sigma
    return config


def make_steps(train_step: Callable, state: Any, batch: Any, steps: int) -> Callable[[], Any]:
    """A function that makes `steps` updates, each from the one before, the first always from `state`."""

    def run():
        last = state
        for _ in range(steps):
            last, figures = train_step(last, batch)
        return last, figures

    return run


@dataclasses.dataclass(frozen=True)
class Run:
    """What a row of the table is measured of: a program, and the HLO that it was compiled to."""

    program: Program
    hlo: str


Chosen = tuple[str, str, float | None]  # layout, dtype, initial sigma


def prepare(
    config: ConfigDict, sigmas: Sequence[float | None], source: GridImages, options: flags.FlagValues
) -> dict[Chosen, Run | Skipped]:
    """The runs; a layout is compiled once a dtype, for a program reads sigma from its state."""
    per_epoch = experiment.steps_per_epoch(config, source)
    settings = experiment.make_settings(config, per_epoch)
    optimizer = experiment.make_optimizer(config, settings, per_epoch)
    batch = make_batch(source, settings)

    def make_task(implementation, dtype, sigma):
        return experiment.make_task(changed(config, implementation, dtype, sigma), source)

    kinds = [(implementation, dtype) for implementation in options.implementations for dtype in options.dtypes]
    tasks = {kind: make_task(*kind, sigmas[0]) for kind in kinds}
    states = {}
    for sigma in sigmas:
        task = make_task(*kinds[0], sigma)
        states[sigma] = jax.jit(lambda task=task: init_state(task, optimizer, config.seed))()
    runs: dict[Chosen, Run | Skipped] = {}
    for kind, task in tasks.items():
        train_step = make_train_step(task, optimizer, settings.accumulation_steps)
        try:
            compiled = compile_ahead(train_step, (states[sigmas[0]], batch), options.memory_limit_gib)
            for sigma, state in states.items():
                program = compiled.program(make_steps(compiled.call, state, batch, options.steps))
                runs[*kind, sigma] = Run(program, compiled.call.as_text())
        except Skipped as reason:
            runs |= {(*kind, sigma): reason for sigma in sigmas}
    return runs


def measure(
    config: ConfigDict, sigmas: Sequence[float | None], source: GridImages, options: flags.FlagValues
) -> list[dict[str, Any]]:
    """What was measured of every layout and dtype from every sigma."""
    rows, timed = [], []
    for (implementation, dtype, sigma), run in prepare(config, sigmas, source, options).items():
        rows.append({"implementation": implementation, "dtype": dtype, "initial_sigma": sigma})
        if isinstance(run, Skipped):
            rows[-1]["skipped"] = str(run)
        else:
            timed.append((rows[-1], run))
    times = interleave([run.program for _, run in timed], options.repeats, options.seconds)
    for (row, run), each in zip(timed, times, strict=True):
        row |= measurement(run.program, [seconds / options.steps for seconds in each])
        if options.parts:
            row["parts"] = parts.measure(run.program.run, run.hlo, trace_folder(options.trace, row))
    images = config.train.batch_size * config.train.accumulation_steps
    baseline = {
        (row["dtype"], row["initial_sigma"]): row["median_ms"] for row, _ in timed if row["implementation"] == BASELINE
    }
    for row, _ in timed:
        row["steps_per_second"] = 1e3 / row["median_ms"]
        row["images_per_second"] = images * row["steps_per_second"]
        to_beat = baseline.get((row["dtype"], row["initial_sigma"]))
        row["speed_up"] = None if to_beat is None else to_beat / row["median_ms"]
    return rows


def trace_folder(trace: str | None, row: dict[str, Any]) -> pathlib.Path | None:
    """Of one row's profile."""
    if trace is None:
        return None
    sigma = "" if row["initial_sigma"] is None else f"_sigma_{row['initial_sigma']:g}"
    return pathlib.Path(trace, f"{row['implementation']}_{row['dtype']}{sigma}")


def format_rows(rows: list[dict[str, Any]]) -> str:
    """The table, with the reasons of what is missing below."""
    shares = [part for part in SHARES if any("parts" in row for row in rows)]
    cells = [["", "", *COLUMNS.values(), *shares]]
    for row in rows:
        found = [f"{row['parts'][part]:.0%}" if "parts" in row else "-" for part in shares]
        cells.append([row["implementation"], row["dtype"], *(number(row.get(key)) for key in COLUMNS), *found])
    lines = [f"  {first:<12}{second:<10}" + "".join(f"{cell:>13}" for cell in rest) for first, second, *rest in cells]
    lines += [f"  {row['implementation']} {row['dtype']} skipped: {row['skipped']}" for row in rows if "skipped" in row]
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    """Measures every layout from every sigma; returns the exit code."""
    if "--help" in argv:
        print(f"{__doc__}\n{define_flags(argv).get_help()}")
        return 0
    options, config, sigmas = parse_flags(argv)
    out = command_line.make_folder(options.out)
    command_line.make_folder(options.trace)
    source = make_source(config, options.data)
    rows = measure(config, sigmas, source, options)
    grid = " x ".join(str(size) for size in source.grid_shape)
    images = f"{config.train.accumulation_steps} x {config.train.batch_size} images of {grid} positions"
    print(f"{config.model.num_blocks} blocks, an update of {images}\n{format_rows(rows)}")
    if out is not None:
        asked = ("implementations", "dtypes", "steps", "repeats", "seconds", "memory_limit_gib", "data", "parts")
        results = {"options": {name: options[name].value for name in asked} | {"sigmas": sigmas}, **describe_machine()}
        results |= {"config": config.to_dict(), "grid_shape": list(source.grid_shape), "rows": rows}
        write_json(out / "results.json", results)
    return 0


def run(argv: list[str]) -> int:
    """`main`, with wrong input told in one line; returns the exit code."""
    return command_line.run(main, argv)


if __name__ == "__main__":
    sys.exit(run(sys.argv))
