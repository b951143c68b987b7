"""The benchmark of decoding as a user runs it, small."""

import json

import pytest

from benchmarks.cpu import decoding


@pytest.mark.slow
def test_both_caches_are_measured(tmp_path, capsys):
    arguments = ("--length=32", "--half_span=3", "--widths=8", "--heads=2", "--blocks=1", "--tokens=4", "--repeats=3")
    assert decoding.run(["decoding", *arguments, f"--out={tmp_path}"]) == 0
    (point,) = json.loads((tmp_path / "results.json").read_text())["points"]
    sizes = {name: each["cache_bytes"] for name, each in point["caches"].items()}
    assert sizes == {"span": 2 * 4 * 8 * 4 + 4, "text": 2 * 32 * 8 * 4 + 4}
    assert all(each["ms"] > 0 for each in point["caches"].values())
    assert capsys.readouterr().out.startswith("width 8   cache of the span ")


@pytest.mark.parametrize(
    "argument, message",
    [
        ("--tokens=5000", "--tokens=5000"),
        ("--widths=12", "--widths=12"),
        ("--widths=a", "--widths"),
        ("--widths=-8", "--widths=-8: expected numbers of at least 1"),
        ("--length=0", "flag --length=0"),
    ],
)
def test_wrong_input(argument, message, capsys):
    assert decoding.run(["decoding", argument]) == 2
    assert message in capsys.readouterr().err
