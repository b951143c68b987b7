"""A sweep as one small file: everything that a report reads of the run folders, so that these need not be kept.

runs.jsonl has a JSON object per line. Fields of configs and summaries have dotted names. The lines are:
  the first           "plan", "commands", "left_out", and the fields that all runs share: "config", "summary"
  for each treatment  "treatment", the fields that its runs share: "config", and "curves", "spans", "costs", "p", as far
                      as they are known
  for each run        "treatment", "seed", its own fields: "config", "summary"; and its "figures" if runs are evaluated
                      again after training
"""

import dataclasses
import json
import math
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from posattn_jax.analysis.plan import Plan, plan_of
from posattn_jax.analysis.runs import Run, Runs
from posattn_jax.analysis.runs.curves import Curve, Spans
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import write_text
from posattn_jax.system.moved import with_present_classes

NAME = "runs.jsonl"
DIGITS, POINTS = 5, 200  # precision and length of arrays that are only drawn


def write(path: pathlib.Path, runs: Runs) -> None:
    """Writes the runs. Fields that they share are written once."""
    config, configs = _split([run.config for run in runs.all])
    of_treatments = {}
    for name in runs.runs:
        own = [i for i, run in enumerate(runs.all) if run.treatment == name]
        of_treatments[name], rest = _split([configs[i] for i in own])
        for i, each in zip(own, rest, strict=True):
            configs[i] = each
    summary, summaries = _split([run.summary for run in runs.all])
    first = {"plan": dataclasses.asdict(runs.plan), "commands": runs.commands, "left_out": runs.left_out}
    lines: list[dict[str, Any]] = [first | {"config": config, "summary": summary}]
    for name in runs.runs:
        curves = {what: _thinned(curve) for what, curve in runs.curves.get(name, {}).items()}
        own = {"config": of_treatments[name], "curves": curves} | {
            what: getattr(runs, what).get(name) for what in ("spans", "costs", "p")
        }
        lines.append({"treatment": name} | {what: _plain(value) for what, value in own.items() if value})
    for run, own_config, own_summary in zip(runs.all, configs, summaries, strict=True):
        line = {"treatment": run.treatment, "seed": run.seed, "config": own_config, "summary": own_summary}
        lines.append(line | ({"figures": run.figures} if runs.plan.evaluate else {}))
    write_text(path, "".join(json.dumps(line, allow_nan=False, separators=(",", ":")) + "\n" for line in lines))


def read(path: pathlib.Path) -> Runs:
    """Reads what `write` wrote.

    Raises:
      InputError: the file was not written by `write`.
    """
    try:
        text = path.read_text(encoding="utf-8")
        first, *lines = (json.loads(line, object_hook=with_present_classes) for line in text.splitlines())
        plan = plan_of(first["plan"])
        left_out = [line for line in first["left_out"] if not line.endswith("not started")]  # `Runs.missing` knows them
        runs = Runs(plan, {}, left_out, first["commands"], {}, {}, {}, {})
        configs = {line["treatment"]: first["config"] | line.get("config", {}) for line in lines if "seed" not in line}
        for line in lines:
            if "seed" in line:
                config = configs[line["treatment"]] | line["config"]
                of_one = runs.runs.setdefault(line["treatment"], [])
                if any(line["seed"] == run.seed for run in of_one):
                    raise ValueError(f"{line['treatment']}/{line['seed']} is there twice")
                of_one.append(_run(line, config, first["summary"], plan))
            else:
                _read_treatment(line, runs)
        if not runs.runs:
            raise ValueError("no run")
        return runs
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: cannot be read ({type(error).__name__}: {error})") from error


def _run(line: dict[str, Any], config: dict[str, Any], shared: dict[str, Any], plan: Plan) -> Run:
    config, summary = unflatten_dict(config, sep="."), unflatten_dict(shared | line["summary"], sep=".")
    figures = line["figures"] if plan.evaluate else summary[plan.summarised]
    return Run(line["treatment"], line["seed"], config, summary, figures, figures[plan.response])


def _read_treatment(line: dict[str, Any], runs: Runs) -> None:
    name = line["treatment"]
    runs.curves[name] = {
        what: Curve(curve.pop("num_runs"), **{field: np.array(values, float) for field, values in curve.items()})
        for what, curve in line.get("curves", {}).items()
    }
    if spans := line.get("spans"):
        factors = {layer: np.array(factor) for layer, factor in spans["factors"].items()}
        runs.spans[name] = Spans(spans["num_runs"], factors, np.array(spans["image"]))
    runs.costs.update({name: line["costs"]} if "costs" in line else {})
    runs.p.update({name: line["p"]} if "p" in line else {})


def _split(trees: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The fields that all trees have with the same value and type, and the other fields of each."""
    flat = [flatten_dict(tree, sep=".") for tree in trees]
    shared = {n: v for n, v in flat[0].items() if all(n in each and repr(each[n]) == repr(v) for each in flat)}
    return shared, [{name: value for name, value in each.items() if name not in shared} for each in flat]


def _thinned(curve: Curve) -> Curve:
    """The curve with at most `POINTS` points, including the last."""
    every = -(-len(curve.at) // POINTS)
    return curve.at_points(np.arange(len(curve.at))[::-every][::-1])


def _plain(value: Any) -> Any:
    """A value as JSON: dataclasses as dicts without None fields, and arrays as lists of rounded numbers."""
    if dataclasses.is_dataclass(value):
        return {name: _plain(each) for name, each in vars(value).items() if each is not None}
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, np.ndarray):
        return [_plain(each) for each in value]
    if isinstance(value, np.floating):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    return value
