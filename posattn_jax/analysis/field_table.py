"""Treatments against a field that they differ in, as papers print them: a row a treatment, a column a value."""

from collections.abc import Iterable

import numpy as np

from posattn_jax.analysis.markdown_text import mean_and_error, table
from posattn_jax.analysis.runs import Run, Runs
from posattn_jax.system.files import flatten


def lines_of(runs: Runs) -> dict[str, list[str]]:
    """The names of treatments that differ in nothing but the plan's axis, by their label up to its last comma."""
    lines: dict[str, list[str]] = {}
    for name in runs.runs:
        lines.setdefault(runs.plan.treatment(name).label.rpartition(",")[0], []).append(name)
    return lines


def value_of(run: Run, field: str) -> object:
    """What a run has at a field of its config."""
    return flatten(run.config)[field]


def compose(runs: Runs) -> str | None:
    """The table, where the plan's axis has names for values, such as those of tasks.

    Cells are means, and standard errors of the mean; the last column is the mean of a row's cells, its error that of
    the means of each seed. A task that is judged by two sets, as MNLI, has two columns. The last row is what it takes
    no model for.
    """
    axis, response = runs.plan.axis, runs.plan.response
    if axis is None or not all(isinstance(value_of(run, axis), str) for run in runs.all):
        return None
    columns: dict[tuple[object, str], str] = {}
    for run in runs.all:
        label = runs.plan.treatment(run.treatment).label.rpartition(",")[2].strip()
        columns[value_of(run, axis), ""] = label
        if f"{response}_mismatched" in run.figures:
            columns[value_of(run, axis), "_mismatched"] = f"{label}-mm"
    rows = []
    for label, names in lines_of(runs).items():
        by_value = {value_of(runs.runs[name][0], axis): runs.runs[name] for name in names}
        found = [
            {run.seed: run.figures[response + suffix] for run in by_value.get(value, [])} for value, suffix in columns
        ]
        seeds = set.intersection(*(set(each) for each in found))
        means = [float(np.mean([each[seed] for each in found])) for seed in sorted(seeds)]
        rows.append([label, *(_mean(each.values()) for each in found), _mean(means)])
    nothing = {value_of(run, axis): run.summary.get("always_the_same", {}) for run in runs.all}
    if all(response + suffix in nothing[value] for value, suffix in columns):
        found = [nothing[value][response + suffix] for value, suffix in columns]
        rows.append(["Always the most frequent label, or the mean", *(_mean([x]) for x in (*found, np.mean(found)))])
    return table(["", *columns.values(), "mean"], rows)


def _mean(values: Iterable[float]) -> str:
    return mean_and_error([100 * value for value in values], "{:.1f}")
