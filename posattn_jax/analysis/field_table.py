"""Treatments against a field that they differ in, as papers print them: a row a treatment, a column a value."""

from collections.abc import Sequence

import numpy as np

from posattn_jax.analysis.markdown_table import table
from posattn_jax.analysis.run_folders import Run, Runs
from posattn_jax.files import flatten


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
    the means of each seed. The last row is what it takes no model for.
    """
    axis = runs.plan.axis
    if axis is None or not all(isinstance(value_of(run, axis), str) for run in runs.all):
        return None
    columns = {value_of(run, axis): runs.plan.treatment(run.treatment).label.rpartition(",")[2] for run in runs.all}
    rows = []
    for label, names in lines_of(runs).items():
        by_value = {value_of(runs.runs[name][0], axis): runs.runs[name] for name in names}
        cells = [_mean([run.response for run in by_value[value]]) if value in by_value else "-" for value in columns]
        rows.append([label, *cells, _of_all([by_value.get(value, []) for value in columns])])
    nothing = {value_of(run, axis): run.summary.get("always_the_same", {}) for run in runs.all}
    if all(runs.plan.response in found for found in nothing.values()):
        found = [nothing[value][runs.plan.response] for value in columns]
        rows.append(["Always the most frequent label, or the mean", *(_percent(x) for x in (*found, np.mean(found)))])
    return table(["", *(name.strip() for name in columns.values()), "mean"], rows)


def _of_all(columns: Sequence[Sequence[Run]]) -> str:
    """The mean over columns, of the seeds that all of them have."""
    by_seed = [{run.seed: run.response for run in column} for column in columns]
    seeds = set.intersection(*(set(each) for each in by_seed))
    return _mean([float(np.mean([each[seed] for each in by_seed])) for seed in sorted(seeds)])


def _mean(values: Sequence[float]) -> str:
    if len(values) < 2:
        return _percent(values[0]) if values else "-"
    return f"{_percent(float(np.mean(values)))} ± {_percent(float(np.std(values, ddof=1)) / len(values) ** 0.5)}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"
