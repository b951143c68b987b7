"""The picture of bits against seconds, and of how far heads reach."""

import json
import math
import pathlib
import sys

import numpy as np
import pytest

from docs.figures import text_picture

RUNS = pathlib.Path("docs/results/char_lm/runs.jsonl")


def write_run(folder, grid=(1024,), **arrays):
    (folder / "summary.json").write_text(json.dumps({"grid_shape": grid, "threshold": 0.1}))
    np.savez(folder / "positions.npz", **{name.replace("__", "/"): array for name, array in arrays.items()})


def test_reaches_and_the_picture(tmp_path, monkeypatch):
    """Blocks in their order, with a sigma a head or one for all; no reach is beyond the text."""
    sigmas = {"block_10__sigma": np.array([[3.0]]), "block_2__sigma": np.array([[0.02], [-0.005]])}
    write_run(tmp_path, **sigmas, block_2__relative_encoding=np.zeros((5, 2, 1)))
    expected = [[math.ceil(math.sqrt(-2 * math.log(0.1)) * sigma * 1023) for sigma in (0.02, 0.005)], [1023]]
    assert [reach.tolist() for reach in text_picture.reaches(tmp_path)] == expected
    monkeypatch.setattr(sys, "argv", ["text_picture", str(RUNS), str(tmp_path), f"--out={tmp_path / 'drawn.png'}"])
    text_picture.main()
    assert (tmp_path / "drawn.png").stat().st_size > 20_000


@pytest.mark.parametrize(
    "spoil, message",
    [
        (lambda folder: (folder / "positions.npz").unlink(), "no finished run there"),
        (
            lambda folder: write_run(folder, block_0__relative_encoding=np.zeros(3)),
            "expected a run with a learned span",
        ),
        (lambda folder: write_run(folder, (4, 6), block_0__sigma=np.ones(2)), "expected a run with a learned span"),
    ],
    ids=["unfinished", "no_span", "grid"],
)
def test_other_runs_are_named(tmp_path, monkeypatch, capsys, spoil, message):
    write_run(tmp_path, block_0__sigma=np.ones((1, 1)))
    spoil(tmp_path)
    monkeypatch.setattr(sys, "argv", ["text_picture", str(RUNS), str(tmp_path), "--out=none.png"])
    with pytest.raises(SystemExit):
        text_picture.main()
    assert message in capsys.readouterr().err


def test_a_missing_file_of_runs_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["text_picture", str(tmp_path / "runs.jsonl"), str(tmp_path), "--out=none.png"])
    with pytest.raises(SystemExit):
        text_picture.main()
    assert "runs.jsonl: no such file" in capsys.readouterr().err
