"""The benchmarks against rivals and of peak memory, small, with a process that answers as PyTorch's does."""

import json
import re
import stat
import sys

import pytest

from benchmarks.cpu import peak_memory, rivals

SMALL = ("--cases=2d8_half2", "--head_dims=2", "--batch=1", "--heads=1", "--repeats=3")
ANSWERS = """
import json, sys
for line in sys.stdin:
    (what, case), = json.loads(line).items()
    failed = {"error": "not today"} if case["rival"] == "flex" else {"seconds": 0.25}
    print(json.dumps(failed), flush=True)
"""


@pytest.fixture
def torch(tmp_path):
    """A Python that runs another script than the one it is given."""
    script = tmp_path / "answers.py"
    script.write_text(ANSWERS)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}"\n')
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    return python


@pytest.mark.slow
def test_every_rival_is_measured(tmp_path, torch, capsys):
    options = ("--rivals=portable,jax,sdpa,flex", "--seconds=.01", f"--torch={torch}", f"--out={tmp_path}")
    assert rivals.run(["rivals", *SMALL, *options]) == 0
    assert "flex skipped: not today" in capsys.readouterr().out
    points = json.loads((tmp_path / "results.json").read_text())["points"]
    assert [point["pass"] for point in points] == ["forward", "forward_backward"]
    for point in points:
        measured = point["rivals"]
        assert measured["sdpa"]["median_ms"] == 250
        for rival in ("portable", "jax"):
            figures = measured[rival]
            assert figures["repeats"] == 3
            assert figures["quartiles_ms"][0] <= figures["median_ms"] <= figures["quartiles_ms"][1]
    portable, sdpa = points[0]["rivals"]["portable"], points[1]["rivals"]["sdpa"]
    assert portable["gflops"] == pytest.approx(6 * 2 * (8 * 5 - 6) ** 2 / portable["median_ms"] / 1e6)
    assert sdpa["gflops"] == pytest.approx(14 * 2 * 64**2 / 0.25 / 1e9)


def test_pairs():
    assert rivals.CASES["1d1024_plain_causal"].pairs(within_span=False) == 1024 * 1025 // 2
    assert rivals.CASES["2d32_half2"].pairs(within_span=True) == (32 * 5 - 6) ** 2
    assert rivals.CASES["2d32_half2"].pairs(within_span=False) == 32**4


@pytest.mark.parametrize(
    "argument, message",
    [
        ("--cases=none", "--cases=none"),
        ("--rivals=numpy", "--rivals=numpy"),
        ("--passes=both", "--passes=both"),
        ("--head_dims=8,x", "--head_dims=8,x"),
        ("--rivals=sdpa", "--torch is not given"),
    ],
)
def test_bad_input_is_one_line(capsys, argument, message):
    assert rivals.run(["rivals", argument]) == 2
    out, err = capsys.readouterr()
    assert out == "" and message in err and len(err.strip().splitlines()) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_peak_memory(capsys):
    arguments = ("--implementation=dense", "--shape=2d24", "--half=2", "--heads=2", "--head_dim=16")
    assert peak_memory.run(["peak_memory", *arguments]) == 0
    assert len(re.findall(r"-?\d+", capsys.readouterr().out)) == 3
    assert peak_memory.run(["peak_memory", "--implementation=none"]) == 2
    assert peak_memory.run(["peak_memory", "--shape=2x24"]) == 2
    assert "error: --shape=2x24: expected such as" in capsys.readouterr().err
