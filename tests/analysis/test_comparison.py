"""What methods cost, in the report of made run folders."""

import json
import pathlib

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.text import Text

from posattn_jax.analysis import comparison, report, tables
from posattn_jax.analysis.findings import outcomes
from posattn_jax.analysis.plan import Hypothesis, Plan, Treatment, write_plan
from posattn_jax.analysis.runs.run_folders import read_runs
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


def test_the_table_has_the_best_first(tmp_path, roughly_drawn):
    made_sweep(tmp_path, better=COST | {"operations": 7e6})
    report.write(tmp_path)
    text = (tmp_path / "report" / "report.md").read_text()
    lines = text.split("## Costs")[1].split("## ")[0].strip().splitlines()
    assert lines[0].startswith("Best-epoch validation accuracy")
    half = 4.302652729911275 * 0.1 / 3**0.5  # t of two degrees of freedom
    assert lines[-1] == tables.EXPLANATION and lines[-4:-2] == [
        "| the better one | 3 | 0.8500 | 0.7258 to 0.9742 | 1,234 | 7 | 250.0 | 3.0 | - | 90 |",
        f"| the plain one | 3 | 0.6000 | {0.6 - half:.4f} to {0.6 + half:.4f} | 1,234 | - | - | - | - | 90 |",
    ]
    assert (tmp_path / "report" / "figures" / "comparison.svg").stat().st_size > 5_000
    again = read_runs(tmp_path / "report")
    assert again.costs == read_runs(tmp_path).costs == {"better": COST | {"operations": 7e6}}


def test_the_picture_has_every_treatment_with_costs(tmp_path):
    made_sweep(tmp_path, better=COST, plain=COST | {"cpu_seconds": 0.1})
    figure = comparison.by_cost(read_runs(tmp_path))
    points = {text.get_text(): text.xy for text in figure.axes[0].texts}
    bars = intervals(figure)
    plt.close(figure)
    half = 4.302652729911275 * 0.1 / 3**0.5  # t of two degrees of freedom
    assert [0.6 - half, 0.6 + half] in [pytest.approx(bar) for bar in bars]
    assert points.keys() == {"plain", "better"}
    np.testing.assert_allclose([points["plain"], points["better"]], [(100, 0.6), (250, 0.85)])


def intervals(figure):
    return [segment[:, 1] for bars in figure.axes[0].collections for segment in bars.get_segments()]


def test_intervals_end_where_accuracies_do(tmp_path):
    made_sweep(tmp_path, plain=COST)
    for seed, accuracy in (("1", 0.6), ("2", 0.8), ("3", 1.0)):
        path = tmp_path / "plain" / seed / "summary.json"
        summary = json.loads(path.read_text())
        path.write_text(json.dumps(summary | {"best": summary["best"] | {"accuracy": accuracy}}))
    figure = comparison.by_cost(read_runs(tmp_path))
    (bar,) = intervals(figure)
    plt.close(figure)
    assert bar == pytest.approx([0.8 - 4.302652729911275 * 0.2 / 3**0.5, 1.0])


def test_no_name_covers_another_or_a_point():
    """Of thirty methods, a colour and a marker for each family."""
    runs = read_runs(pathlib.Path("docs/results/compare_cifar"))
    figure = comparison.by_cost(runs)
    figure.canvas.draw()
    axis = figure.axes[0]
    boxes = {text.get_text(): Text.get_window_extent(text) for text in axis.texts}
    families = {
        line.get_label(): (line.get_color(), line.get_marker()) for line in axis.lines if line.get_marker() != "None"
    }
    pixels, frame = axis.transData.transform([text.xy for text in axis.texts]), axis.get_window_extent()
    plt.close(figure)
    assert boxes.keys() == runs.runs.keys() and len(boxes) == 30
    for name, box in boxes.items():
        assert not [other for other, its in boxes.items() if other != name and box.overlaps(its)], name
        assert not [point for point in pixels if box.contains(*point)], name
        assert frame.containsx(box.x0) and frame.containsx(box.x1), name
        assert frame.containsy(box.y0) and frame.containsy(box.y1), name
    assert families.keys() == {treatment.family for treatment in runs.plan.treatments}
    assert len(set(families.values())) == len(families) == 7


def test_the_front_is_what_nothing_is_better_and_faster_than():
    points = [(3.0, 0.9), (1.0, 0.5), (2.0, 0.4), (2.0, 0.7), (4.0, 0.9)]
    assert comparison.pareto_front(points, lower_is_better=False) == [(1.0, 0.5), (2.0, 0.7), (3.0, 0.9)]
    assert comparison.pareto_front(points, lower_is_better=True) == [(1.0, 0.5), (2.0, 0.4)]


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
    lines = tables.by_cost(runs, outcomes(runs)).splitlines()[-4:-2]
    assert [line.split(" | ")[2] for line in lines] == ["1.0000", "2.0000"]


def test_what_the_spans_saved(tmp_path, undrawn):
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
    assert tables.by_cost(runs, outcomes(runs)) is comparison.by_cost(runs) is None


@pytest.mark.parametrize("text", ['{"treat', '{"treated": {}}'])
def test_damaged_costs_are_named(tmp_path, text):
    made_sweep(tmp_path)
    (tmp_path / "costs.json").write_text(text)
    with pytest.raises(InputError, match=r"costs.json: cannot be read"):
        read_runs(tmp_path)
