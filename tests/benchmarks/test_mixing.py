"""The benchmark of mixers as a user runs it, small."""

import json

import pytest

from benchmarks.cpu import mixing


@pytest.mark.slow
def test_every_mixer_is_measured(tmp_path, capsys):
    """The compiler counts what Table 7 says for the search, and softmax, GELU and LN."""
    arguments = ("--length=32", "--width=256", "--heads=2", "--context=4", "--repeats=3", f"--out={tmp_path}")
    assert mixing.run(["mixing", *arguments]) == 0
    mixers = json.loads((tmp_path / "results.json").read_text())["mixers"]
    n, c, h, k = 32, 256, 2, 9
    for name, table in (("aPosNet", h * n * n), ("rPosNet", h * n * k)):
        found = mixers[f"{name}, precomputed"]
        assert found["parameters"] == 3 * c * c + 3 * c + 2 * c + table
        assert found["formula"] == n * n * c + 3 * n * c * c
        assert found["multiply_adds"] == pytest.approx(found["formula"], rel=0.1)  # 5% at width 512
        assert found["multiply_adds"] < mixers[name]["multiply_adds"]
    assert mixers["Transformer"]["parameters"] == 4 * c * c + 4 * c
    assert all(row["repeats"] == 3 and row["median_ms"] > 0 for row in mixers.values())
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(mixers) + 1


@pytest.mark.parametrize(
    "argument, message",
    [("--heads=3", "--heads=3 does not divide --width=512"), ("--length=0", "flag --length=0")],
)
def test_bad_input_is_one_line(argument, message, capsys):
    assert mixing.run(["mixing", argument]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1
