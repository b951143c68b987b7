import json
import sys

import pytest

from docs.figures import span_cost


def write_run(workdir, penalty, images_per_second):
    workdir.mkdir()
    train = {"batch_size": 20, "accumulation_steps": 2}
    (workdir / "config.json").write_text(json.dumps({"train": train, "task": {"span_penalty": penalty}}))
    (workdir / "summary.json").write_text(json.dumps({"grid_shape": [8, 4], "final": {"accuracy": 0.5}}))
    figures = {"block_0/size_0": 15, "block_0/size_1": 7, "block_1/size_0": 9, "block_1/size_1": 1}
    figures |= {"block_0/score_share_0": 1.0, "block_1/score_share_0": 0.5}
    rows = [{"step": step, "split": "span", "name": k, "value": v} for step in (10, 20) for k, v in figures.items()]
    rows += [
        {"step": step, "split": "speed", "name": "images_per_second", "value": images_per_second} for step in (10, 20)
    ]
    (workdir / "metrics.jsonl").write_text("".join(json.dumps(row | {"epoch": 0}) + "\n" for row in rows))


def test_figures_of_a_run(tmp_path, monkeypatch):
    write_run(tmp_path / "a", 0.0, 10.0)
    write_run(tmp_path / "b", 0.3, 20.0)
    label, series = span_cost.read_run(tmp_path / "b")
    assert label == "penalty 0.3: accuracy 0.500"
    assert series["seconds an update"] == ([10, 20], [2.0, 2.0])
    assert series["scores computed (share of N x N)"] == ([10, 20], [0.75, 0.75])
    assert series["span (share of the offsets)"][1] == pytest.approx([(1 + 1 + 9 / 15 + 1 / 7) / 4] * 2)
    monkeypatch.setattr(
        sys, "argv", ["span_cost", str(tmp_path / "a"), str(tmp_path / "b"), f"--out={tmp_path / 'c.png'}"]
    )
    span_cost.main()
    assert (tmp_path / "c.png").stat().st_size > 10_000


def test_an_unfinished_run_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["span_cost", str(tmp_path), "--out=c.png"])
    with pytest.raises(SystemExit):
        span_cost.main()
    assert "no finished run there" in capsys.readouterr().err
