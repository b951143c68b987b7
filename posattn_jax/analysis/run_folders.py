"""What the run folders of a sweep have to say: finished runs by treatment, and what had to be left out."""

import dataclasses
import functools
import json
import pathlib
from typing import Any

import numpy as np

from posattn_jax.analysis.plan import Hypothesis, Plan, Treatment, read_plan
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import flatten, has_fields, is_evaluated, read_metrics

# Fields in which runs of one treatment may differ: the seed, where the data lies, and what is there to compute with.
MAY_DIFFER = ("seed", "data.dir", "data.cache_dir", "data.download")
MAY_DIFFER += ("mesh.data", "mesh.fsdp", "mesh.model", "mesh.grid", "train.bounded_spans")


@dataclasses.dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
      treatment, seed: which.
      workdir: its folder.
      config, summary: its files.
      figures: of the epoch, or the evaluation, that the sweep judges by.
      response: the one that it judges by.
    """

    treatment: str
    seed: int
    workdir: pathlib.Path
    config: dict[str, Any]
    summary: dict[str, Any]
    figures: dict[str, Any]
    response: float

    @functools.cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """The rows of `metrics.jsonl`; none where it is not there."""
        path = self.workdir / "metrics.jsonl"
        return read_metrics(path) if path.exists() else []

    @functools.cached_property
    def positions(self) -> dict[str, np.ndarray]:
        """The arrays of `positions.npz`; none where it is not there."""
        path = self.workdir / "positions.npz"
        if not path.exists():
            return {}
        with np.load(path, allow_pickle=False) as file:
            return dict(file)

    def series(self, split: str, name: str) -> list[tuple[int, float, float]]:
        """(step, epoch, value) of one metric."""
        rows = (row for row in self.metrics if row["split"] == split and row["name"] == name)
        return [(row["step"], float(row["epoch"]), float(row["value"])) for row in rows]


@dataclasses.dataclass(frozen=True)
class Runs:
    """A sweep's finished runs.

    Attributes:
      plan: what was asked.
      runs: by treatment, those with a finished run, in the plan's order, each ordered by seed as in the plan.
      left_out: a line for everything that is missing or was not used.
      commands: that ran the sweep, as far as they are known.
    """

    plan: Plan
    runs: dict[str, list[Run]]
    left_out: list[str]
    commands: list[str]

    def responses(self, treatment: str) -> list[float]:
        """Of all finished runs of a treatment."""
        return [run.response for run in self.runs.get(treatment, [])]

    @property
    def treatments(self) -> list[Treatment]:
        """Those with a finished run."""
        return [treatment for treatment in self.plan.treatments if treatment.name in self.runs]

    @property
    def judged_by(self) -> str:
        """The examples that the runs are judged by: "validation" or "test"."""
        return "test" if self.all[0].config["data"].get("validation") == "test" else "validation"

    @property
    def response_label(self) -> str:
        """What `responses` are."""
        if not self.plan.evaluate:
            return f"{self.plan.epoch}-epoch {self.judged_by} {self.plan.response}"
        changes = ", ".join(f"{name} = {value}" for name, value in self.plan.evaluate.items())
        return f"{self.plan.part} {self.plan.response} under {changes}, {self._which}"

    @property
    def _which(self) -> str:
        """The parameters that an evaluation is of."""
        of_average = self.all[0].config.get("task") == "translation"
        return "of averaged checkpoints" if of_average else "after the best epoch"

    def figure_label(self, treatment: str, drawn: list[Run]) -> str:
        """A treatment's name, and how many of its runs a figure shows."""
        label = self.plan.treatment(treatment).label.replace("$", r"\$")  # no formula
        return f"{label} (n = {len(drawn)})"

    @property
    def all(self) -> list[Run]:
        """Every run."""
        return [run for runs in self.runs.values() for run in runs]


def read_runs(workdir: pathlib.Path) -> Runs:
    """Reads `WORKDIR/TREATMENT/SEED`.

    Without `sweep.json` every folder with runs is a treatment, and each is compared with every other.

    Raises:
      InputError: no finished run at all, or runs that cannot be compared: another seed than their folder says, or
        configs that differ in more than the treatments do.
    """
    plan, commands = None, []
    if (workdir / "sweep.json").exists():
        plan, how = read_plan(workdir / "sweep.json")
        commands = how.get("commands", [])
    folders = sorted(path.parent for path in workdir.glob("*/*/config.json"))
    if not folders:
        raise InputError(f"--workdir={workdir}: no runs there (it has no TREATMENT/SEED/config.json)")
    if plan is None:
        plan = _plan_of(folders)
    known = [treatment.name for treatment in plan.treatments]
    started = {folder.parent.name for folder in folders}
    left_out = [f"{name}: is no treatment of this sweep" for name in sorted(started - set(known))]
    left_out += [f"{name}: was not started" for name in known if name not in started]
    runs: dict[str, list[Run]] = {}
    for treatment in (name for name in known if name in started):
        runs[treatment] = []
        for seed in plan.seeds_of(plan.treatment(treatment)):
            run = _read_run(workdir / treatment / str(seed), treatment, seed, plan)
            if isinstance(run, Run):
                runs[treatment].append(run)
            else:
                left_out.append(f"{treatment}/{seed}: {run}")
    for folder in folders:
        seeds = plan.seeds_of(plan.treatment(folder.parent.name)) if folder.parent.name in known else ()
        if folder.parent.name in known and folder.name not in map(str, seeds):
            left_out.append(f"{folder.parent.name}/{folder.name}: is no seed of this sweep")
    left_out += [f"{treatment}: no run is finished" for treatment, finished in runs.items() if not finished]
    runs = {treatment: finished for treatment, finished in runs.items() if finished}
    if not runs:
        raise InputError(f"--workdir={workdir}: no run is finished ({'; '.join(left_out)})")
    _check_configs(runs, plan)
    for run in (run for of_one in runs.values() for run in of_one):
        for name in ("metrics.jsonl", "positions.npz"):
            if not (run.workdir / name).exists():
                left_out.append(f"{run.treatment}/{run.seed}: is not in every figure (it has no {name})")
    return Runs(plan, runs, left_out, commands)


def _plan_of(folders: list[pathlib.Path]) -> Plan:
    names = list(dict.fromkeys(folder.parent.name for folder in folders))
    for folder in folders:
        if not folder.name.isdigit():
            raise InputError(f"{folder}: expected a folder named by its seed")
    pairs = [(b, a) for i, a in enumerate(names) for b in names[i + 1 :]]
    return Plan(
        "Do these treatments differ?",
        tuple(Treatment(name, name) for name in names),
        tuple(Hypothesis(f"{b} and {a} differ", b, a) for b, a in pairs),
        tuple(dict.fromkeys(int(folder.name) for folder in folders)),
    )


def _read_run(workdir: pathlib.Path, treatment: str, seed: int, plan: Plan) -> Run | str:
    """The run, or why there is none."""
    if not (workdir / "config.json").exists():
        return "was not started"
    config, summary, evaluation = (_read(workdir / f"{name}.json") for name in ("config", "summary", "evaluation"))
    assert config is not None
    if config["seed"] != seed:
        raise InputError(f"{workdir}: its config has seed={config['seed']}, its folder is named {seed}")
    fields = plan.treatment(treatment).fields
    if not has_fields(config, fields):
        listed = ", ".join(f"{name}={value}" for name, value in fields.items())
        raise InputError(f"{workdir}: is not a run of its treatment, which has {listed}")
    if summary is None:
        return "is not finished"
    figures = summary["best" if plan.epoch == "best" else "final"]
    if plan.evaluate:
        if not is_evaluated(evaluation, summary, plan.evaluate):
            return f"was not evaluated under {', '.join(f'{k}={v}' for k, v in plan.evaluate.items())}"
        assert evaluation is not None
        if plan.part not in evaluation:
            return f"its evaluation has no {plan.part} part"
        figures = evaluation[plan.part]
    if plan.response not in figures:
        raise InputError(f'{workdir}: has no "{plan.response}" ({", ".join(figures)})')
    return Run(treatment, seed, workdir, config, summary, figures, figures[plan.response])


def _read(path: pathlib.Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: cannot be read ({error})") from error


def _check_configs(runs: dict[str, list[Run]], plan: Plan) -> None:
    """InputError where runs differ in more than their seed, or treatments in more than their fields."""
    fields = {name for treatment in plan.treatments for name in treatment.fields}
    planned = any(treatment.fields for treatment in plan.treatments)
    first = next(iter(runs.values()))[0]
    for of_one in runs.values():
        for run in of_one:
            _check_same(of_one[0], run, set(MAY_DIFFER))
            if planned:
                _check_same(first, run, fields | set(MAY_DIFFER))


def _check_same(a: Run, b: Run, may_differ: set[str]) -> None:
    one, other = flatten(a.config), flatten(b.config)
    for name in sorted(one.keys() | other.keys()):
        if one.get(name) != other.get(name) and not any(f"{name}.".startswith(f"{each}.") for each in may_differ):
            raise InputError(
                f"{a.workdir} and {b.workdir} cannot be compared: {name} is {one.get(name)!r} and {other.get(name)!r}"
            )
