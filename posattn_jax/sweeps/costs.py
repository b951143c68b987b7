"""Measures the cost of an update for every treatment of a sweep: operations, memory and seconds.

  python -m posattn_jax.sweeps.costs --config=configs/compare.py --workdir=runs/compare [--treatments=siren,rope]
      [--updates=5] [--config.FIELD=VALUE ...]

Operations are those of the formulas for all pairs (implementation=reference), without what an implementation saves or
adds.
Memory and seconds are those of the update as it is trained: the temporary memory of the compiled program, and CPU
seconds summed over all cores, which depend little on other work of the machine. Writes WORKDIR/costs.json, which the
report reads. Treatments that are in it already are not measured again. Exit codes: 0 done, 2 wrong input.
"""

import sys
import time
from typing import Any

import jax
import numpy as np
from absl import flags
from ml_collections import ConfigDict, config_flags

from posattn_jax.analysis.plan import load_plan
from posattn_jax.benchmarks import operations
from posattn_jax.benchmarks.command import describe_machine
from posattn_jax.config.parts import change, set_all, without_none
from posattn_jax.system import command_line
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import read_json, write_json


def define_flags(argv: list[str]) -> flags.FlagValues:
    """The flags of this command, not yet parsed, and separate from those of other commands."""
    values = flags.FlagValues()
    own: dict[str, Any] = {"flag_values": values}
    config_flags.DEFINE_config_file("config", None, "The config file, with a variant.", sys_argv=argv, **own)
    flags.DEFINE_string("workdir", None, "The sweep's folder.", **own)
    flags.DEFINE_list("treatments", None, "Only these treatments of the sweep.", **own)
    flags.DEFINE_integer(
        "updates",
        5,
        "Number of timed updates, after as many untimed ones; the median is reported.",
        lower_bound=1,
        **own,
    )
    return values


def main(argv: list[str]) -> int:
    """Measures the treatments, and writes the file after each; returns the exit code."""
    options = define_flags(argv)
    command_line.show_help(options, argv, str(__doc__))
    command_line.check_no_more(command_line.parse_with_config(options, argv)[1:])
    command_line.check_config_given(options.config)
    if options.workdir is None:
        raise InputError("--workdir=FOLDER is missing: the sweep's folder, such as --workdir=runs/compare")
    folder = command_line.make_folder(options.workdir)
    assert folder is not None
    plan = load_plan(config_flags.get_config_filename(options["config"])).select(options.treatments, None)
    path = folder / "costs.json"
    found = {"treatments": {}} | (read_json(path) or {})
    for treatment in plan.treatments:
        if treatment.name in found["treatments"]:
            continue
        config = without_none(options.config.copy_and_resolve_references())
        change(config, treatment.fields)
        costs = measure(config, options.updates)
        found = found | describe_machine()
        found["treatments"][treatment.name] = costs
        write_json(path, found)
        print(f"{treatment.name}: " + ", ".join(f"{name} {value:,.6g}" for name, value in costs.items()), flush=True)
    return 0


def measure(config: ConfigDict, updates: int = 5) -> dict[str, float]:
    """The cost of an update: "operations", "temp_bytes", "cpu_seconds" (summed over all cores) and "seconds"."""
    from posattn_jax.config import experiment
    from posattn_jax.run.span_saving import first_batch
    from posattn_jax.train.step import init_state, make_train_step

    source = experiment.load_sources(config)["train"]
    task, optimizer, _, settings = experiment.prepare(config, source)
    laid_out = config.copy_and_resolve_references()
    set_all(laid_out.model, implementation="reference")
    batch = first_batch(source, settings)

    def step_of(task: Any) -> tuple[Any, Any]:
        step = make_train_step(task, optimizer, settings.accumulation_steps)
        return step, lambda: init_state(task, optimizer, jax.random.key(config.seed))

    step, begin = step_of(experiment.make_task(laid_out, source))
    counted = operations.count(step, jax.eval_shape(begin), batch)
    step, begin = step_of(task)
    state = jax.jit(begin)()
    compiled: Any = jax.jit(step).lower(state, batch).compile()
    clocks = []
    for _ in range(2 * updates):  # the first updates of a process are slow
        state, _ = jax.block_until_ready(compiled(state, batch))
        clocks.append((time.process_time(), time.perf_counter()))
    cpu_seconds, seconds = np.median(np.diff(clocks[updates - 1 :], axis=0), axis=0).tolist()
    return {
        "operations": float(counted),
        "temp_bytes": float(compiled.memory_analysis().temp_size_in_bytes),
        "cpu_seconds": cpu_seconds,
        "seconds": seconds,
    }


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv))
