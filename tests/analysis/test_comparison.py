"""The comparison of methods from made run folders, as its user calls it."""

import json
import sys

import numpy as np
import pytest

from posattn_jax.analysis import comparison
from posattn_jax.analysis.plan import Hypothesis, Plan, Treatment, write_plan
from posattn_jax.analysis.run_folders import read_runs
from tests.analysis.made_sweep import write_run

RESPONSES = {"plain": (0.5, 0.6, 0.7), "better": (0.8, 0.9, 0.85), "unfinished": ()}


def made_sweep(folder, response="accuracy"):
    treatments = tuple(Treatment(name, f"the {name} one", {"model.kind": name}) for name in RESPONSES)
    hypotheses = (Hypothesis("Better is higher", "better", "plain", "greater"),)
    plan = Plan("Which?", treatments, hypotheses, seeds=(1, 2, 3), response=response)
    write_plan(folder / "sweep.json", plan, {"commands": []})
    for name, responses in RESPONSES.items():
        for seed, value in enumerate(responses, 1):
            write_run(folder / name / str(seed), value, kind=name)


def called(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["comparison", *map(str, arguments)])
    return comparison.main()


@pytest.mark.parametrize("measured", [True, False])
def test_table_and_figure(tmp_path, monkeypatch, capsys, measured):
    runs, out = tmp_path / "runs", tmp_path / "out"
    made_sweep(runs)
    if measured:
        cost = {"operations": 5e6, "temp_bytes": 3 * 2**20, "cpu_seconds": 0.25, "seconds": 0.2}
        costs = {"treatments": {"plain": cost, "better": cost | {"operations": 7e6}}}
        (runs / "costs.json").write_text(json.dumps(costs))
    assert called(monkeypatch, runs, f"--out={out}") == 0
    assert "2 methods, 6 runs" in capsys.readouterr().out
    first, second = json.loads((out / "comparison.json").read_text())["methods"]
    assert (first["name"], second["name"], first["n"]) == ("better", "plain", 3)
    np.testing.assert_allclose([first["mean"], second["mean"]], [0.85, 0.6])
    half = 4.302652729911275 * 0.1 / 3**0.5  # t of two degrees of freedom
    np.testing.assert_allclose([second["low"], second["high"]], [0.6 - half, 0.6 + half])
    assert (first["operations"], first["temp_mib"], first["cpu_ms"]) == ((7e6, 3, 250) if measured else (None,) * 3)
    text = (out / "comparison.md").read_text()
    row = "| the better one | 3 | 0.8500 | 0.7258 to 0.9742 | 1,234 | "
    assert row + ("7 | 250.0 | 3.0 | - | 90 |" if measured else "- | - | - | - | 90 |") in text
    assert "unfinished: was not started" in text and "Better is higher" in text
    for suffix in ("png", "svg"):
        assert (out / f"comparison.{suffix}").stat().st_size > 5_000


def test_of_losses_the_least_is_first(tmp_path):
    """As masked language models are judged."""
    made_sweep(tmp_path, "loss")
    for name, loss in (("plain", 2.0), ("better", 1.0)):
        for seed in "123":
            path = tmp_path / name / seed / "summary.json"
            summary = json.loads(path.read_text())
            summary["best"]["loss"] = loss
            path.write_text(json.dumps(summary))
    rows = comparison.compare(read_runs(tmp_path))
    assert [row.mean for row in rows] == [1.0, 2.0]


def test_what_cannot_be_read_is_told_in_a_line(tmp_path, monkeypatch, capsys):
    assert called(monkeypatch, tmp_path, f"--out={tmp_path}") == 2
    assert "no runs there" in capsys.readouterr().err
    made_sweep(tmp_path)
    (tmp_path / "costs.json").write_text('{"treat')
    assert called(monkeypatch, tmp_path, f"--out={tmp_path}") == 2
    assert "costs.json: cannot be read (Unterminated string" in capsys.readouterr().err
