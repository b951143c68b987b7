"""The benchmark of depthwise convolutions as a user runs it, small."""

import json

import pytest

from benchmarks.cpu import depthwise


def test_both_forms_are_measured(tmp_path, capsys):
    arguments = ("--grid=4x3", "--kernel=3x1", "--batch=2", "--width=2", "--repeats=3", f"--out={tmp_path}")
    assert depthwise.run(["depthwise", *arguments]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["options"]["grid"] == "4x3"
    assert list(results["programs"]) == [
        f"{form}, {place}" for form in ("shifted grids", "XLA") for place in ("alone", "in a loop")
    ]
    assert all(row["repeats"] == 3 and row["median_ms"] > 0 for row in results["programs"].values())
    assert len(capsys.readouterr().out.splitlines()) == 1 + 4 + 1


@pytest.mark.parametrize(
    "argument, message",
    [
        ("--kernel=2x3", "--kernel=2x3: kernel_shape=(2, 3)"),
        ("--kernel=3", "--kernel=3: kernel_shape=(3,)"),
        ("--grid=8,x", "--grid=8,x: expected one to 3 sizes, such as 8x8"),
        ("--batch=0", "flag --batch=0"),
    ],
)
def test_bad_input_is_one_line(argument, message, capsys):
    assert depthwise.run(["depthwise", argument]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1
