"""The benchmark of cut grids as a user runs it, small."""

import json

import pytest

from benchmarks.compilers import halo


@pytest.mark.slow
def test_every_program_is_measured(tmp_path, capsys):
    arguments = ("--shapes=1d32", "--halves=2", "--devices=4", "--heads=2", "--head_dim=4", f"--out={tmp_path}")
    assert halo.run(["halo", *arguments]) == 0
    rows = json.loads((tmp_path / "results.json").read_text())["programs"]
    assert [(row["pass"], row["devices"]) for row in rows] == [
        ("forward", 1),
        ("forward", 4),
        ("forward_backward", 1),
        ("forward_backward", 4),
    ]
    halos = 2 * 2 * 2 * 2 * 4 * 4  # keys and values, two sides, half-span, h, d, float32
    assert [row["sent_bytes"]["exchanged"] for row in rows] == [0, halos, 0, 2 * halos]
    assert [row["all_gather_bytes"] for row in rows] == [0, 6 * halos, 0, 12 * halos]
    for one, cut in (rows[:2], rows[2:]):
        assert one["of_one"] == 1 < cut["of_one"]
        assert cut["memory_bytes"]["all"] * cut["of_one"] == pytest.approx(one["memory_bytes"]["all"])
    assert len(capsys.readouterr().out.splitlines()) == 2 * (2 + 2 + 1)


@pytest.mark.parametrize(
    "argument, message",
    [
        ("--halves=0", "--halves=0: expected numbers of at least 1"),
        ("--shapes=4d2", "--shapes=4d2"),
        ("--devices=1000", "--devices=1000: there are 8"),
    ],
)
def test_bad_input_is_one_line(argument, message, capsys):
    assert halo.run(["halo", argument]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1
