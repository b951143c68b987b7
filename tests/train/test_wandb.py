"""`--wandb`, with a library of that name which writes down how it is called."""

import json
import sys
import types

import pytest

from posattn_jax.system import extras
from posattn_jax.system.errors import InputError
from posattn_jax.train import writers
from tests.support.command import run, run_forked

FAKE = """
import json

class Run:
    def __init__(self, arguments):
        self._file = open(arguments["dir"] + "/calls.jsonl", "a")
        self._note("init", arguments)

    def _note(self, name, value):
        self._file.write(json.dumps([name, value]) + "\\n")

    def log(self, metrics, step):
        self._note("log", [step, metrics])

    def finish(self, exit_code):
        self._note("finish", exit_code)
        self._file.close()

def init(**arguments):
    return Run(arguments)
"""


@pytest.fixture
def fake(monkeypatch):
    module = types.ModuleType("wandb")
    exec(FAKE, module.__dict__)
    monkeypatch.setitem(sys.modules, "wandb", module)


def calls(workdir):
    return [json.loads(line) for line in (workdir / "calls.jsonl").read_text().splitlines()]


def test_metrics_go_to_one_run_of_the_project(fake, tmp_path):
    for step in (1, 2):  # a run that goes on
        writer = writers.WandbWriter(tmp_path, "grids", {"seed": 3})
        writer.write(step, 0.5, "validation", {"accuracy": 0.25})
        writer.close()
    first, logged, finished, again, *_ = calls(tmp_path)
    assert first == again
    assert first[1] | {"id": ""} == {
        "project": "grids",
        "name": str(tmp_path),
        "id": "",
        "resume": "allow",
        "dir": str(tmp_path),
        "config": {"seed": 3},
    }
    assert logged == ["log", [1, {"epoch": 0.5, "validation/accuracy": 0.25}]]
    assert finished == ["finish", 0]


def test_a_run_that_fails_is_told_as_failed(fake, tmp_path):
    writer = writers.WandbWriter(tmp_path, "grids", {})
    with pytest.raises(ZeroDivisionError):
        try:
            _ = 1 / 0
        finally:
            writer.close()
    assert calls(tmp_path)[-1] == ["finish", 1]


def test_missing_library_is_one_line(monkeypatch):
    for module in (None, types.ModuleType("wandb")):  # a folder wandb/, as runs leave behind
        monkeypatch.setitem(sys.modules, "wandb", module)
        with pytest.raises(InputError, match=r"wandb .*posattn_jax\[wandb\]"), extras.named():
            writers.load_wandb()


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--wandb=grids", "--mode=evaluate"], "--wandb is for --mode=train and sweep"),
        (["--wandb="], "--wandb="),
    ],
    ids=str,
)
def test_only_trainings_are_logged(tmp_path, arguments, message):
    code, _, err = run_forked(f"--workdir={tmp_path / 'run'}", *arguments)
    assert code == 2 and message in err


@pytest.mark.slow
def test_the_command_logs_what_the_run_folder_has(tmp_path, monkeypatch):
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb" / "__init__.py").write_text(FAKE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    workdir = tmp_path / "run"
    code, _, err = run(f"--workdir={workdir}", "--wandb=grids")
    assert code == 0, err
    rows = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    told = {(step, name): value for kind, (step, made) in calls(workdir)[1:-1] for name, value in made.items()}
    assert {(row["step"], f"{row['split']}/{row['name']}"): row["value"] for row in rows}.items() <= told.items()
    assert calls(workdir)[0][1]["config"] == json.loads((workdir / "config.json").read_text())
