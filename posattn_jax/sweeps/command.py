"""`--mode=sweep`: runs a sweep from the command line, and writes its report."""

import dataclasses
import pathlib
import shlex
import sys
from typing import Any

import jax
from absl import flags
from ml_collections import ConfigDict, config_flags

from posattn_jax.analysis import report
from posattn_jax.analysis.plan import Plan, load_plan, read_plan, write_plan
from posattn_jax.analysis.runs import MAY_DIFFER, check_same, runs_file
from posattn_jax.analysis.runs.run_folders import read_runs
from posattn_jax.config.parts import change, without_none
from posattn_jax.config.saved import completed
from posattn_jax.sweeps.prepare import about, make_jobs
from posattn_jax.sweeps.sweep import Executor, run
from posattn_jax.system import command_line, extras
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import as_saved


def sweep(options: flags.FlagValues, workdir: pathlib.Path) -> None:
    """Runs or resumes the sweep of a config file, and writes the report; or only tells what it is."""
    config_file = config_flags.get_config_filename(options["config"])  # with its variant
    changed = config_flags.get_override_values(options["config"])
    jax.config.update("jax_platforms", "cpu")  # the accelerators are for the runs
    executor = Executor(
        options.executor, options.workers, options.timeout_minutes, _pairs(options.slurm), options.vmap_seeds
    )
    plan = load_plan(config_file)
    if plan.of_translations:
        extras.need("sacrebleu")  # for the evaluation of each run, and the report
    seeds = None if options.seeds is None else command_line.numbers("--seeds", options.seeds)
    chosen = plan.select(options.treatments, seeds)
    stated, commands = _with_earlier(plan.select(None, seeds), workdir)
    reserved = {name for treatment in plan.treatments for name in treatment.fields}
    logging = [] if options.wandb is None else [f"--wandb={options.wandb}"]
    for_all = {"vmapped": options.vmap_seeds > 1, "options": logging, "modules": options.modules}
    for_all["reads_data"] = not options.check
    jobs = make_jobs(chosen, options.config, config_file, changed, workdir, reserved, **for_all)
    command = shlex.join(["python", "-m", "posattn_jax.main", *sys.argv[1:]])
    if options.finished is not None:
        there = _finished(pathlib.Path(options.finished), plan, options.config)
        jobs = [job for job in jobs if (job.treatment, job.seed) not in there]
        if not jobs:
            print(f"nothing is left to run: every run is in {options.finished}")
            return
    if options.check:
        print(*about(chosen, jobs), "", f"{len(jobs)} runs can start", sep="\n")
        return
    write_plan(workdir / "sweep.json", stated, {"commands": list(dict.fromkeys((*commands, command)))})
    if run(jobs, workdir, executor):
        report.write(workdir, complete=completed)
    else:
        print("nothing is left to start: the array's other jobs are at work on the rest")


def _with_earlier(plan: Plan, workdir: pathlib.Path) -> tuple[Plan, list[str]]:
    """The plan of the config with the seeds of earlier calls in this folder added, and the commands of these calls."""
    path = workdir / "sweep.json"
    if not path.exists():
        return plan, []
    earlier, how = read_plan(path)
    if earlier.question != plan.question:
        raise InputError(f'--workdir={workdir} has another sweep, "{earlier.question}": choose another folder')
    return plan.select(None, list(dict.fromkeys((*earlier.seeds, *plan.seeds)))), how.get("commands", [])


def _finished(folder: pathlib.Path, plan: Plan, config: ConfigDict) -> set[tuple[str, int]]:
    """The treatments and seeds of the runs in the folder of a `runs.jsonl`. These must be runs of this sweep."""
    if not (folder / runs_file.NAME).exists():
        raise InputError(f"--finished={folder}: expected a folder with {runs_file.NAME}")
    runs = read_runs(folder, completed)
    if runs.plan.question != plan.question:
        raise InputError(f'--finished={folder} has another sweep, "{runs.plan.question}"')
    for treatment in (each for each in plan.treatments if each.name in runs.runs):
        theirs = runs.runs[treatment.name][0]
        own = without_none(config.copy_and_resolve_references())
        change(own, treatment.fields)
        ours = dataclasses.replace(theirs, config=as_saved(own.to_dict()))
        try:
            check_same(theirs, ours, MAY_DIFFER)
        except InputError as error:
            raise InputError(f"--finished={folder}: {str(error).partition(': ')[2]} in the config") from error
    return {(run.treatment, run.seed) for run in runs.all}


def _pairs(parameters: list[str]) -> dict[str, Any]:
    """The SLURM parameters as submitit takes them: whole numbers become int."""
    pairs = [parameter.partition("=") for parameter in parameters]
    for name, equals, value in pairs:
        if not (name and equals and value):
            raise InputError(f"--slurm={','.join(parameters)}: expected NAME=VALUE,NAME=VALUE")
    return {name: int(value) if value.isdigit() else value for name, _, value in pairs}
