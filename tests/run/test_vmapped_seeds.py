"""Runs of several seeds in one program as a user meets them: their folders are those of runs alone."""

import json
import shutil

import numpy as np
import pytest

from posattn_jax.run.train import _stages
from tests.support.command import run_forked
from tests.support.recorded import figures_of

LONGER = ("--config.train.total_steps=4", "--config.train.eval_steps=2")


def command(*arguments):
    code, out, err = run_forked(*arguments)
    assert code == 0, err
    return out


@pytest.fixture(scope="module")
def vmapped(tmp_path_factory):
    """Seeds 3 and 4: their folder, and what was printed."""
    folder = tmp_path_factory.mktemp("vmapped")
    return folder, command(f"--workdir={folder}", "--seeds=3,4", *LONGER)


def files_of(workdir):
    """Without the names that have a time in them, and what is in a checkpoint."""
    parts = (path.relative_to(workdir).parts for path in workdir.rglob("*"))
    return {part[:2] for part in parts if part[0] != "events"}


def assert_same(workdir, expected):
    assert files_of(workdir) == files_of(expected)
    read = [{path.name: json.loads(path.read_text()) for path in each.glob("*.json")} for each in (workdir, expected)]
    assert read[0]["config.json"] == read[1]["config.json"]
    made, known = (each["summary.json"] for each in read)
    assert made.keys() == known.keys()
    assert made["best"] == pytest.approx(known["best"], abs=1e-5)
    rows, known_rows = figures_of(workdir), figures_of(expected)
    values = [[row.pop("value") for row in each] for each in (rows, known_rows)]
    assert rows == known_rows
    np.testing.assert_allclose(*values, atol=1e-5)
    with np.load(workdir / "positions.npz") as arrays, np.load(expected / "positions.npz") as known_arrays:
        assert arrays.files == known_arrays.files
        for name in arrays.files:
            np.testing.assert_allclose(arrays[name], known_arrays[name], atol=1e-5)


@pytest.mark.slow
def test_a_folder_is_that_of_a_run_alone(vmapped, tmp_path):
    folder, out = vmapped
    assert "seed 3: best validation accuracy" in out and f"run folder {folder / '4'}\npictures in figures/: " in out
    command(f"--workdir={tmp_path / 'alone'}", "--config.seed=4", *LONGER)
    assert_same(folder / "4", tmp_path / "alone")


@pytest.mark.slow
def test_a_run_is_evaluated_and_goes_on_alone(vmapped, tmp_path):
    folder = shutil.copytree(vmapped[0] / "3", tmp_path / "copy")
    own = f"--workdir={folder}", "--config.seed=3", *LONGER
    command(*own, "--mode=evaluate")
    evaluation, summary = (json.loads((folder / f"{name}.json").read_text()) for name in ("evaluation", "summary"))
    assert evaluation["validation"]["accuracy"] == pytest.approx(summary["best"]["accuracy"])
    command(*own, "--config.train.total_steps=6")
    assert json.loads((folder / "summary.json").read_text())["final"]["step"] == 6


@pytest.mark.slow
def test_those_behind_catch_up_first(vmapped, tmp_path):
    """One has come to its second step, the other has not begun."""
    command(f"--workdir={tmp_path / '4'}", "--config.seed=4", "--config.train.eval_steps=2")
    command(f"--workdir={tmp_path}", "--seeds=3,4", *LONGER)
    for seed in "34":
        assert_same(tmp_path / seed, vmapped[0] / seed)


def test_stages():
    assert _stages([0, 0], 9) == [([0, 1], None)]
    assert _stages([3, 0, 7, 3], 9) == [([1], 3), ([0, 1, 3], 7), ([0, 1, 2, 3], None)]
    assert _stages([12, 3], 9) == [([1], 9), ([0, 1], None)]  # the first is refused there


@pytest.mark.slow
def test_a_sweep_of_vmapped_seeds(tmp_path):
    options = "--mode=sweep", "--treatments=siren_2d,span_2d", "--seeds=3,4", "--workers=1"
    command(f"--workdir={tmp_path / 'alone'}", *options)
    command(f"--workdir={tmp_path / 'vmapped'}", *options, "--vmap_seeds=2")
    found = [
        {(each["treatment"], each["seed"]): each["response"] for each in json.loads(path.read_text())["runs"]}
        for path in sorted(tmp_path.glob("*/report/results.json"))
    ]
    assert len(found[0]) == 4 and found[0] == pytest.approx(found[1], abs=1e-6)
    assert "--seeds=3,4" in (tmp_path / "vmapped" / "logs" / "span_2d" / "4.txt").read_text()
