"""Joins the runs of several folders into one sweep, for example runs of other machines or days."""

import dataclasses
import math

import numpy as np

from posattn_jax.analysis.plan import Plan
from posattn_jax.analysis.runs import Runs
from posattn_jax.analysis.runs.curves import Curve, Spans
from posattn_jax.analysis.runs.runs_file import DIGITS
from posattn_jax.analysis.statistics import Sample, mean_interval
from posattn_jax.system.errors import InputError

# Seconds of different machines or days cannot be compared: only those of the first folder stay.
APART = "seconds"


def join(runs: Runs, others: Runs) -> Runs:
    """The runs of both as those of a single sweep. Curves and spans are means over all runs.

    Raises:
      InputError: both have the same run, or a treatment differs between them.
    """
    plan = _joined_plan(runs.plan, others.plan)
    by_name = {}
    for treatment in plan.treatments:
        of_one = [*runs.runs.get(treatment.name, []), *others.runs.get(treatment.name, [])]
        seeds = [run.seed for run in of_one]
        twice = next((seed for seed in seeds if seeds.count(seed) > 1), None)
        if twice is not None:
            raise InputError(f"{treatment.name}/{twice} is in two of the folders: expected each run once")
        if of_one:
            by_name[treatment.name] = sorted(of_one, key=lambda run: plan.seeds.index(run.seed))
    found = {*by_name, *(f"{run.treatment}/{run.seed}" for of_one in by_name.values() for run in of_one)}
    left_out = dict.fromkeys(line for line in runs.left_out + others.left_out if line.split(":")[0] not in found)
    return Runs(
        plan,
        by_name,
        list(left_out),
        list(dict.fromkeys(runs.commands + others.commands)),
        {name: _joined_curves(*(each.curves.get(name, {}) for each in (runs, others))) for name in by_name},
        _joined_spans(runs.spans, others.spans),
        others.costs | runs.costs,
        others.p | runs.p,
    )


def _joined_plan(plan: Plan, other: Plan) -> Plan:
    """The first plan, with the further treatments, hypotheses and seeds of the other."""
    fields = {treatment.name: treatment.fields for treatment in plan.treatments}
    for treatment in other.treatments:
        if fields.get(treatment.name, treatment.fields) != treatment.fields:
            raise InputError(f"{treatment.name} has other fields in one of the folders: expected the same treatment")
    return dataclasses.replace(
        plan,
        treatments=(*plan.treatments, *(each for each in other.treatments if each.name not in fields)),
        hypotheses=tuple(dict.fromkeys((*plan.hypotheses, *other.hypotheses))),
        seeds=tuple(dict.fromkeys((*plan.seeds, *other.seeds))),
        num_stated=max(filter(None, (plan.num_stated, other.num_stated)), default=None),
    )


def _joined_curves(curves: dict[str, Curve], others: dict[str, Curve]) -> dict[str, Curve]:
    others = {name: curve for name, curve in others.items() if name != APART}
    both = {
        name: joined_curve(curves[name], others[name], is_response=name == "epochs")
        for name in curves.keys() & others.keys()
    }
    return others | curves | both


def joined_curve(a: Curve, b: Curve, is_response: bool) -> Curve:
    """The curve over the runs of both, at the places that both have (a file may keep only some of many).

    The mean of a response has its interval, the mean of a span's size its range.
    """
    _, *places = np.intersect1d(_as_in_a_file(a.at), _as_in_a_file(b.at), return_indices=True)
    a, b = (curve.at_points(own) for curve, own in zip((a, b), places, strict=True))
    n, m = a.num_runs, b.num_runs
    at, mean = a.at, (n * a.mean + m * b.mean) / (n + m)
    if not is_response:
        assert a.low is not None and b.low is not None and a.high is not None and b.high is not None
        low, high = np.minimum(a.low, b.low), np.maximum(a.high, b.high)
        return Curve(n + m, at, mean, low, high)
    squares = _squares(a) + _squares(b) + n * m / (n + m) * (a.mean - b.mean) ** 2
    stds = np.sqrt(squares / (n + m - 1))
    ends = [mean_interval(Sample(n + m, *each)) for each in zip(mean.tolist(), stds.tolist(), strict=True)]
    return Curve(n + m, at, mean, np.array([each.low for each in ends]), np.array([each.high for each in ends]))


def _as_in_a_file(at: np.ndarray) -> np.ndarray:
    return np.array([float(f"{each:.{DIGITS}g}") for each in at])


def _squares(curve: Curve) -> np.ndarray:
    """sum_i (x_i - mean)^2 over the runs, computed from the interval of the mean."""
    if curve.low is None or curve.high is None:
        return np.zeros(len(curve.mean))
    unit = mean_interval(Sample(curve.num_runs, 0.0, 1.0)).high * math.sqrt(curve.num_runs)
    stds = (curve.high - curve.low) / 2 / unit * math.sqrt(curve.num_runs)
    return (curve.num_runs - 1) * stds**2


def _joined_spans(spans: dict[str, Spans], others: dict[str, Spans]) -> dict[str, Spans]:
    both = {}
    for name in spans.keys() & others.keys():
        a, b = spans[name], others[name]
        n = a.num_runs + b.num_runs
        factors = {layer: (a.num_runs * a.factors[layer] + b.num_runs * b.factors[layer]) / n for layer in a.factors}
        both[name] = Spans(n, factors, a.image)
    return others | spans | both
