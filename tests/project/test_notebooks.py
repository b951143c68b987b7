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
    assert len(NAMES) == 8
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


@pytest.mark.parametrize("address", ["", "git+https://host/posattn_jax"])
def test_opened_alone_one_line_tells_what_to_fill_in(tmp_path, monkeypatch, capsys, address):
    """Or it installs what is filled in, and tells what to expect of the device."""
    install = next(cell.source for cell in read(NAMES[0]).cells if "pip" in cell.source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    commands, run = [], subprocess.run

    def called(command, **options):
        commands.append(command)
        return run(command, **options) if "-c" in command else None

    monkeypatch.setattr(subprocess, "run", called)
    install = install.replace('ADDRESS = ""', f'ADDRESS = "{address}"')
    if not address:
        with pytest.raises(SystemExit, match="^Fill in ADDRESS"):
            exec(install, {})
        return
    exec(install, {})
    assert commands[0][-1] == f"posattn_jax[train,nlp] @ {address}"
    assert capsys.readouterr().out.startswith("cpu 8 x cpu: all works here")


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
