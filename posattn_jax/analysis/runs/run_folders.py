"""Reads the runs of a sweep from run folders, or from the file that replaces them."""

import io
import itertools
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from posattn_jax.analysis.plan import Hypothesis, Plan, Treatment, read_plan
from posattn_jax.analysis.runs import Complete, Run, Runs, runs_file
from posattn_jax.analysis.runs.curves import Curve, Spans, log_of, response_curves, size_curves
from posattn_jax.analysis.span_pictures import mean_factor
from posattn_jax.analysis.translation_scores import (
    Tokenize,
    is_installed,
    outside_scores,
    p_of_folders,
    tokenize_of,
    tokenize_of_signature,
)
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import has_fields, is_evaluated, read_json, read_metrics


def read_runs(workdir: pathlib.Path, complete: Complete = dict) -> Runs:
    """Reads `WORKDIR/runs.jsonl` or, if there is none, `WORKDIR/TREATMENT/SEED`.

    Without `sweep.json`, every folder with runs is a treatment, and each treatment is compared with every other.

    Args:
      workdir: the folder.
      complete: a function that updates configs of earlier versions, such as `config.saved.completed`; by default they
        stay as they are.

    Raises:
      InputError: there is no finished run, or runs cannot be compared: the seed of a run is not that of its folder, or
        configs differ in more than the fields of the treatments.
    """
    path = workdir / runs_file.NAME
    runs = runs_file.read(path) if path.exists() else _read_folders(workdir)
    runs = runs.completed(complete)
    runs.check()
    return runs


def _read_folders(workdir: pathlib.Path) -> Runs:
    folders = sorted(path.parent for path in workdir.glob("*/*/config.json"))
    if not folders:
        raise InputError(f"--workdir={workdir}: no runs there (it has no TREATMENT/SEED/config.json)")
    plan, how = read_plan(path) if (path := workdir / "sweep.json").exists() else (_plan_of(folders), {})
    seeds = {treatment.name: plan.seeds_of(treatment) for treatment in plan.treatments}
    started = {folder.parent.name for folder in folders}
    left_out = [f"{name}: is no treatment of this sweep" for name in sorted(started - seeds.keys())]
    read = {
        (name, seed): _read_run(workdir / name / str(seed), name, seed, plan)
        for name in seeds
        if name in started
        for seed in seeds[name]
    }
    left_out += [f"{name}/{seed}: {why}" for (name, seed), why in read.items() if isinstance(why, str)]
    left_out += [
        f"{folder.parent.name}/{folder.name}: is no seed of this sweep"
        for folder in folders
        if folder.name not in map(str, seeds.get(folder.parent.name, [folder.name]))
    ]
    runs = {name: [run for run in read.values() if isinstance(run, Run) and run.treatment == name] for name in seeds}
    left_out += [f"{name}: no run is finished" for name in seeds if name in started and not runs[name]]
    runs = {name: of_one for name, of_one in runs.items() if of_one}
    if not runs:
        raise InputError(f"--workdir={workdir}: no run is finished ({'; '.join(left_out)})")
    curves, spans = {}, {}
    for name, of_one in runs.items():
        finished = [workdir / name / str(run.seed) for run in of_one]
        left_out += [
            f"{name}/{folder.name}: is not in every figure (it has no {file})"
            for folder in finished
            for file in ("metrics.jsonl", "positions.npz")
            if not (folder / file).exists()
        ]
        curves[name] = _read_curves(finished, of_one[0].summary, plan.response)
        num_dims = len(of_one[0].summary["grid_shape"])
        if num_dims < 3 and (found := _read_spans(finished, num_dims)):
            spans[name] = found
    commands, costs, p = how.get("commands", []), _read_costs(workdir), _read_p(workdir, plan, runs)
    return Runs(plan, runs, left_out, commands, curves, spans, costs, p)


def _read_curves(folders: Sequence[pathlib.Path], summary: dict[str, Any], response: str) -> dict[str, Curve]:
    """The logged curves of the response and, if spans have a mask, of their sizes."""
    paths = [folder / "metrics.jsonl" for folder in folders]
    logs = [log_of(read_metrics(path)) for path in paths if path.exists()]
    sizes = size_curves(logs, len(summary["grid_shape"])) if (summary["threshold"] or 0) > 0 else {}
    return response_curves(logs, response) | sizes


def _read_spans(folders: Sequence[pathlib.Path], num_dims: int) -> Spans | None:
    """The spans of the runs that have saved their spans and an image; None if no run has."""
    factors, images = [], []
    for path in (folder / "positions.npz" for folder in folders):
        arrays = span_arrays(path) if path.exists() else {}
        image = arrays.pop("image", None)
        if arrays and image is not None:
            factors.append({name.split("/")[0]: mean_factor(sigma, num_dims) for name, sigma in arrays.items()})
            images.append(image)
    if not factors:
        return None
    layers = sorted(factors[0], key=lambda layer: int(layer.split("_")[1]))
    return Spans(
        len(factors), {layer: np.mean([each[layer] for each in factors], axis=0) for layer in layers}, images[0]
    )


def span_arrays(file: pathlib.Path | io.BytesIO) -> dict[str, Any]:
    """Of the arrays of a `positions.npz` those that a report reads: each span's sigma, and the image."""
    with np.load(file, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files if name == "image" or name.endswith("/sigma")}


def _read_costs(workdir: pathlib.Path) -> dict[str, dict[str, float]]:
    """The costs of an update of every treatment; empty if they were not measured."""
    path = workdir / "costs.json"
    costs = (read_json(path) or {"treatments": {}}).get("treatments")
    if not isinstance(costs, dict):
        raise InputError(f"{path}: cannot be read (it has no treatments)")
    return costs


def _read_p(workdir: pathlib.Path, plan: Plan, runs: dict[str, list[Run]]) -> dict[str, dict[str, dict[str, float]]]:
    """The p-values of each treatment's translations against each baseline's, for the first seed that both have.

    Two baselines are tested once. BLEU's tokenisation is that of the runs' scores. There is no p if two runs were
    scored with different ones, or with one that is not installed here.
    """
    if not plan.of_translations:
        return {}
    baselines = [name for name in plan.baselines or list(runs)[:1] if name in runs]
    found: dict[str, dict[str, dict[str, float]]] = {}
    for baseline, name in itertools.product(baselines, runs):
        theirs = {run.seed: run for run in runs[baseline]}
        run = next((run for run in runs[name] if run.seed in theirs), None)
        if name == baseline or run is None or name in found.get(baseline, {}):
            continue
        tokenize = _tokenize(run)
        if tokenize != _tokenize(theirs[run.seed]) or not is_installed(tokenize):
            continue
        pair = [workdir / each / str(run.seed) / "translations" / plan.part for each in (baseline, name)]
        if p := p_of_folders(pair, tokenize, run.config["data"]["fold_case"]):
            found.setdefault(name, {})[baseline] = p
    return found


def _tokenize(run: Run) -> Tokenize:
    """The tokenisation with which a run was scored; if it saved no signature, that of its language."""
    return tokenize_of_signature(run.figures.get("bleu_signature", "")) or tokenize_of(run.config["data"]["target"])


def _plan_of(folders: list[pathlib.Path]) -> Plan:
    names = list(dict.fromkeys(folder.parent.name for folder in folders))
    for folder in folders:
        if not folder.name.isdigit():
            raise InputError(f"{folder}: expected a folder named by its seed")
    return Plan(
        "Do these treatments differ?",
        tuple(Treatment(name, name) for name in names),
        tuple(Hypothesis(f"{b} and {a} differ", b, a) for a, b in itertools.combinations(names, 2)),
        tuple(dict.fromkeys(int(folder.name) for folder in folders)),
    )


def _read_run(workdir: pathlib.Path, treatment: str, seed: int, plan: Plan) -> Run | str | None:
    """The run; or the reason why there is none; or None, if it was not started."""
    config, summary, evaluation = (read_json(workdir / f"{name}.json") for name in ("config", "summary", "evaluation"))
    if config is None:
        return None
    if config["seed"] != seed:
        raise InputError(f"{workdir}: its config has seed={config['seed']}, its folder is named {seed}")
    fields = plan.treatment(treatment).fields
    if not has_fields(config, fields):
        listed = ", ".join(f"{name}={value}" for name, value in fields.items())
        raise InputError(f"{workdir}: is not a run of its treatment, which has {listed}")
    if summary is None:
        return "is not finished"
    figures = summary[plan.summarised]
    if plan.evaluate:
        if not is_evaluated(evaluation, summary, plan.evaluate):
            return f"was not evaluated under {', '.join(f'{k}={v}' for k, v in plan.evaluate.items())}"
        if plan.part not in evaluation:
            return f"its evaluation has no {plan.part} part"
        figures = evaluation[plan.part]
        if plan.of_translations:
            figures = figures | outside_scores(workdir / "translations" / plan.part)
    if plan.response not in figures:
        raise InputError(f'{workdir}: has no "{plan.response}" ({", ".join(figures)})')
    return Run(treatment, seed, config, summary, figures, figures[plan.response])
