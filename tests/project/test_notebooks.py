"""The notebooks under colabs/: each is a pair of .py and .ipynb that say the same, and runs, at a small size."""

import os
import shutil
import subprocess
import sys

import jupytext
import nbformat
import pytest

from tests.support.command import ROOT, environment

FOLDER = ROOT / "colabs"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))


def cells(notebook):
    return [(cell.cell_type, cell.source) for cell in notebook.cells]


def read(name):
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def test_there_are_pairs():
    assert len(NAMES) == 7
    assert {path.name for path in FOLDER.iterdir() if path.suffix in (".py", ".ipynb")} == {
        f"{name}{suffix}" for name in NAMES for suffix in (".py", ".ipynb")
    }


@pytest.mark.parametrize("name", NAMES)
def test_pair_is_in_sync(name):
    """After a change: `launch/notebooks.sh NAME`. Outputs are of one run of all cells, without its progress."""
    notebook = read(name)
    nbformat.validate(notebook)
    assert cells(notebook) == cells(jupytext.read(FOLDER / f"{name}.py"))
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    outputs = [output for cell in code for output in cell.outputs]
    assert not any(output.output_type == "error" or output.get("name") == "stderr" for output in outputs)
    counts = [cell.execution_count for cell in code]
    assert counts in ([None] * len(code), list(range(1, len(code) + 1)))


def test_a_clone_stays_small():
    assert sum(path.stat().st_size for path in FOLDER.glob("*.ipynb")) < 1_000_000


def test_all_are_installed_alike():
    """One cell, which does nothing where the package is there: an address that changes is changed in all."""
    installing = {cell.source for name in NAMES for cell in read(name).cells if "pip" in cell.source}
    assert len(installing) == 1
    assert all(any("pip" in cell.source for cell in read(name).cells) for name in NAMES)


@pytest.mark.slow  # what they show is run as examples of README and docs too
@pytest.mark.parametrize("name", NAMES)
def test_notebook_runs(name, tmp_path):
    shutil.copy(FOLDER / f"{name}.ipynb", tmp_path)
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "--nbmake", "--nbmake-timeout=280", "-q", f"{name}.ipynb"],
        cwd=tmp_path,
        env=environment() | {"POSATTN_SMALL": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout[-3000:]
