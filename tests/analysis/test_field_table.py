"""A table in the form of papers: a row a model, a column a task."""

import json

import pytest

from posattn_jax.analysis import report, sweep_figures, tables
from posattn_jax.analysis.findings import outcomes
from posattn_jax.analysis.plan import Plan, Treatment, write_plan
from posattn_jax.analysis.runs.run_folders import read_runs
from tests.analysis.made_sweep import write_run

SCORES = {"plain_rte": (0.5, 0.6), "plain_cola": (0.1, 0.3), "other_rte": (0.7, 0.7), "other_cola": (0.4,)}
LABELS = {"plain": "No convolution", "other": "Composite (Equation 6), ours"}
TASKS = {"rte": "RTE", "cola": "CoLA"}


@pytest.fixture
def workdir(tmp_path):
    treatments = []
    for name, scores in SCORES.items():
        model, task = name.split("_")
        fields = {"data.name": task, "model.kind": model}
        treatments.append(Treatment(name, f"{LABELS[model]}, {TASKS[task]}", fields))
        for seed, score in enumerate(scores, start=1):
            folder = tmp_path / name / str(seed)
            write_run(folder, score, kind=model)
            config, summary = (json.loads((folder / f"{each}.json").read_text()) for each in ("config", "summary"))
            config["data"]["name"] = task
            summary["always_the_same"] = {"accuracy": {"rte": 0.527, "cola": 0.0}[task]}
            (folder / "config.json").write_text(json.dumps(config))
            (folder / "summary.json").write_text(json.dumps(summary))
    plan = Plan("Which is better?", tuple(treatments), seeds=(1, 2), axis="data.name")
    write_plan(tmp_path / "sweep.json", plan, {})
    return tmp_path


def test_means_errors_and_what_needs_no_model(workdir):
    """std of .5 and .6 is .0707, over the root of 2 is .05; the mean column is of seeds that all tasks have."""
    assert tables.by_field(read_runs(workdir)).splitlines() == [
        "|  | RTE | CoLA | mean |",
        "| --- | --- | --- | --- |",
        "| No convolution | 55.0 ± 5.0 | 20.0 ± 10.0 | 37.5 ± 7.5 |",
        "| Composite (Equation 6), ours | 70.0 ± 0.0 | 40.0 | 55.0 |",
        "| Always the most frequent label, or the mean | 52.7 | 0.0 | 26.4 |",
    ]


def test_it_is_in_the_report_in_the_place_of_a_figure(workdir):
    runs = read_runs(workdir)
    text = report.compose(runs, outcomes(runs), [])
    assert "## By data.name" in text and "| No convolution | 55.0 ± 5.0 |" in text
    assert sweep_figures._by_field(runs) is None


def test_a_field_of_numbers_has_no_table(tmp_path):
    for blocks in (1, 2):
        for seed in (1, 2):
            write_run(tmp_path / f"m_{blocks}" / str(seed), 0.5 + blocks / 10 + seed / 50, num_blocks=blocks)
    treatments = tuple(Treatment(f"m_{n}", f"Model, depth {n}", {"model.num_blocks": n}) for n in (1, 2))
    write_plan(tmp_path / "sweep.json", Plan("Deeper?", treatments, seeds=(1, 2), axis="model.num_blocks"), {})
    assert tables.by_field(read_runs(tmp_path)) is None
