"""Makes the jobs of a sweep from a config file and its `sweep()`."""

import pathlib
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from posattn_jax.analysis.plan import Plan, load_plan
from posattn_jax.config import experiment
from posattn_jax.config.names import short
from posattn_jax.config.parts import change, without_none
from posattn_jax.run.folder import check_config
from posattn_jax.run.train import check_vmapped
from posattn_jax.sweeps.jobs import Job
from posattn_jax.system.errors import InputError


def treat(config: ConfigDict, config_file: str, changed: Collection[str], name: str) -> None:
    """Changes a config to that of a treatment of its sweep. `changed` are the fields that the user has set.

    Raises:
      InputError: there is no such treatment, or it sets a field that the user has set.
    """
    treatment = load_plan(config_file).treatment(name)
    check_free(changed, treatment.fields)
    change(config, treatment.fields)


def check_free(changed: Collection[str], reserved: Collection[str]) -> None:
    """Raises InputError if a field that the user has set is a reserved one, or within one."""
    for name in changed:
        if any(f"{name}.".startswith(f"{each}.") for each in reserved):
            raise InputError(f"--config.{name}: expected no value, each run of this sweep sets its own")


def make_jobs(
    plan: Plan,
    config: ConfigDict,
    config_file: str,
    changed: Mapping[str, Any],
    folder: pathlib.Path,
    reserved: Collection[str],
    vmapped: bool = False,
    options: Sequence[str] = (),
    modules: Sequence[str] = (),
    reads_data: bool = True,
) -> list[Job]:
    """The jobs, ordered by seed and then by treatment, so that treatments are comparable if a sweep is stopped.

    Args:
      plan: the treatments and seeds to run.
      config: the config that treatments change.
      config_file: its file and variant, for the command line.
      changed: the fields that the user has set, which are in `config` already.
      folder: the folder of the sweep.
      reserved: the fields in which treatments of the whole sweep differ. `plan` may be a part of that sweep.
      vmapped: whether seeds will be vmapped.
      options: further options of the command line of a training, which an evaluation does not get.
      modules: those whose classes a run's config may name: see `names.trust`.
      reads_data: read the data of the first run, to fail early if they are missing.

    Raises:
      InputError: the user has set a reserved field, or one without effect; the config does not have a field of a
        treatment, a run folder belongs to another config, or the seeds of a treatment cannot be vmapped.
    """
    check_free(changed, {"seed", *plan.evaluate, *reserved})
    config, jobs = without_none(config.copy_and_resolve_references()), []
    for seed in plan.seeds:
        for treatment in (each for each in plan.treatments if seed in plan.seeds_of(each)):
            own = config.copy_and_resolve_references().lock()
            try:
                change(own, treatment.fields | {"seed": seed})
                experiment.check_used(own, changed)
            except InputError as error:
                raise InputError(f'treatment "{treatment.name}": {error}') from error
            workdir = folder / treatment.name / str(seed)
            check_config(own, workdir)
            if vmapped:
                check_vmapped(own)
            trusted = (f"--modules={','.join(modules)}",) if modules else ()
            program = (sys.executable, "-m", "posattn_jax.main", f"--config={config_file}", *trusted)
            same = (f"--treatment={treatment.name}", *(_flag(name, value) for name, value in changed.items()))
            command = (*program, f"--workdir={workdir}", *same, _flag("seed", seed))
            evaluation = (*command, "--mode=evaluate", *(_flag(name, value) for name, value in plan.evaluate.items()))
            jobs.append(
                Job(
                    treatment=treatment.name,
                    seed=seed,
                    workdir=workdir,
                    log=folder / "logs" / treatment.name / f"{seed}.txt",
                    commands=((*command, *options), *([evaluation] if plan.evaluate else [])),
                    command_of_seeds=(*program, f"--workdir={workdir.parent}", *same),
                    total_steps=own.train.total_steps,
                    total_epochs=own.train.total_epochs,
                    evaluate=plan.evaluate,
                    epoch=plan.epoch,
                )
            )
    if reads_data:
        first = config.copy_and_resolve_references()
        change(first, plan.treatments[0].fields | {"seed": plan.seeds[0]})
        experiment.load_sources(first)
    return jobs


def about(plan: Plan, jobs: Sequence[Job]) -> list[str]:
    """Lines about a plan: each treatment, how many of the jobs it has, and what it changes; then the hypotheses."""
    width = max(len(treatment.name) for treatment in plan.treatments)
    lines = [plan.question, "", "treatments, their runs, and what they change:"]
    for treatment in plan.treatments:
        runs = sum(job.treatment == treatment.name for job in jobs)
        changes = "  ".join(f"{path}={_shown(value)}" for path, value in treatment.fields.items())
        lines.append(f"  {treatment.name:{width}}  {runs}  {treatment.label}: {changes or 'nothing'}")
    lines += ["", f"hypotheses between them: {len(plan.hypotheses) or 'none'}"]
    return lines + [f"  {each.claim} ({each.alternative}: {', '.join(each.names)})" for each in plan.hypotheses]


def _shown(value: Any) -> str:
    """A value in a line: of a part its kind, of several parts all their names."""
    if not isinstance(value, Mapping):
        return str(value)
    return short(value["kind"]) if "kind" in value else ",".join(value)


def _flag(name: str, value: Any) -> str:
    return f"--config.{name}={value}"
