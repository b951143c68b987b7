"""What methods cost, in the report of made run folders."""

import json

import matplotlib.pyplot as plt
import numpy as np
import pytest

from posattn_jax.analysis import report, sweep_figures, tables
from posattn_jax.analysis.findings import outcomes
from posattn_jax.analysis.plan import Hypothesis, Plan, Treatment, write_plan
from posattn_jax.analysis.run_folders import read_runs
from posattn_jax.system.errors import InputError
from tests.analysis.made_sweep import write_run

RESPONSES = {"plain": (0.5, 0.6, 0.7), "better": (0.8, 0.9, 0.85), "unfinished": ()}
COST = {"operations": 5e6, "temp_bytes": 3 * 2**20, "cpu_seconds": 0.25, "seconds": 0.2}


def made_sweep(folder, response="accuracy", **costs):
    treatments = tuple(Treatment(name, f"the {name} one", {"model.kind": name}) for name in RESPONSES)
    hypotheses = (Hypothesis("Better is higher", "better", "plain", "greater"),)
    plan = Plan("Which?", treatments, hypotheses, seeds=(1, 2, 3), response=response)
    write_plan(folder / "sweep.json", plan, {"commands": []})
    for name, responses in RESPONSES.items():
        for seed, value in enumerate(responses, 1):
            write_run(folder / name / str(seed), value, kind=name)
    if costs:
        (folder / "costs.json").write_text(json.dumps({"treatments": costs}))


def test_the_table_has_the_best_first(tmp_path):
    made_sweep(tmp_path, better=COST | {"operations": 7e6})
    report.write(tmp_path)
    text = (tmp_path / "report" / "report.md").read_text()
    lines = text.split("## Costs")[1].split("## ")[0].strip().splitlines()
    assert lines[0].startswith("Best-epoch validation accuracy: means and 95% intervals of the mean (t).")
    half = 4.302652729911275 * 0.1 / 3**0.5  # t of two degrees of freedom
    assert lines[-2:] == [
        "| the better one | 3 | 0.8500 | 0.7258 to 0.9742 | 1,234 | 7 | 250.0 | 3.0 | - | 90 |",
        f"| the plain one | 3 | 0.6000 | {0.6 - half:.4f} to {0.6 + half:.4f} | 1,234 | - | - | - | - | 90 |",
    ]
    assert (tmp_path / "report" / "figures" / "comparison.svg").stat().st_size > 5_000
    again = read_runs(tmp_path / "report")
    assert again.costs == read_runs(tmp_path).costs == {"better": COST | {"operations": 7e6}}


def test_the_picture_has_every_treatment_with_costs(tmp_path):
    made_sweep(tmp_path, better=COST, plain=COST | {"cpu_seconds": 0.1})
    figure = sweep_figures.by_cost(read_runs(tmp_path))
    points = {text.get_text(): text.xy for text in figure.axes[0].texts}
    plt.close(figure)
    assert points.keys() == {"plain", "better"}
    np.testing.assert_allclose([points["plain"], points["better"]], [(100, 0.6), (250, 0.85)])


def test_of_losses_the_least_is_first(tmp_path):
    """As masked language models are judged."""
    made_sweep(tmp_path, "loss", plain=COST)
    for name, loss in (("plain", 2.0), ("better", 1.0)):
        for seed in "123":
            path = tmp_path / name / seed / "summary.json"
            summary = json.loads(path.read_text())
            summary["best"]["loss"] = loss
            path.write_text(json.dumps(summary))
    runs = read_runs(tmp_path)
    lines = tables.by_cost(runs, outcomes(runs)).splitlines()[-2:]
    assert [line.split(" | ")[2] for line in lines] == ["1.0000", "2.0000"]


def test_what_the_spans_saved(tmp_path):
    """Of the runs that measured it, means over seeds; of a sweep without one no section."""
    made_sweep(tmp_path)
    assert tables.by_span(read_runs(tmp_path)) is None and "spans saved" not in report_of(tmp_path)
    for seed, rate in (("1", 3.0), ("2", 5.0)):
        path = tmp_path / "better" / seed / "summary.json"
        saving = {"with_span": rate, "without_span": 1.0}
        shares = {"pair_share": {"block_0": 0.1, "block_1": 0.3}, "score_share": {"block_0": 0.2, "block_1": 0.6}}
        path.write_text(json.dumps(json.loads(path.read_text()) | shares | {"span_saving": saving}))
    text = report_of(tmp_path)
    assert "| 2 | 4 | 1 | 4.00 ± 1.00 | 20.0 % | 40.0 % |" in text.split("## What the spans saved")[1].split("## ")[0]


def report_of(folder):
    report.write(folder)
    return (folder / "report" / "report.md").read_text(encoding="utf-8")


def test_without_costs_there_is_nothing_to_compare(tmp_path):
    made_sweep(tmp_path)
    runs = read_runs(tmp_path)
    assert tables.by_cost(runs, outcomes(runs)) is sweep_figures.by_cost(runs) is None


@pytest.mark.parametrize("text", ['{"treat', '{"treated": {}}'])
def test_damaged_costs_are_named(tmp_path, text):
    made_sweep(tmp_path)
    (tmp_path / "costs.json").write_text(text)
    with pytest.raises(InputError, match=r"costs.json: cannot be read"):
        read_runs(tmp_path)
