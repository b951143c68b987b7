"""The paper's runs in slices of time."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from tests.support.command import environment
from tests.support.made_data import write_binary

SCRIPT = pathlib.Path(__file__).parents[2] / "launch" / "reproduce_cifar.sh"


def reproduce(*arguments, cwd=None, **variables):
    env = environment() | variables
    return subprocess.run([SCRIPT, *arguments], cwd=cwd, env=env, capture_output=True, text=True, timeout=900)


@pytest.mark.parametrize("arguments", [(), ("--data=here", "--minutes=soon")])
def test_what_is_missing_is_told(arguments):
    done = reproduce(*arguments)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 3
    assert "--data is needed, and --minutes is a number" in done.stderr


@pytest.mark.slow
def test_slices_are_those_of_the_launcher(tmp_path):
    done = reproduce("--data=data", f"--slices={tmp_path}/out", "--minutes=0.5", cwd=tmp_path, PYTHON=sys.executable)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        2,
        "posattn_jax: error: --minutes=0.5: expected more than 0.5",
    )


def with_a_gpu(folder):
    """For those who ask the driver: jax is not among them."""
    folder.mkdir()
    tool = folder / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU 0: H200 (UUID: x)'\n")
    tool.chmod(0o755)
    return folder


@pytest.mark.slow
def test_two_slices(tmp_path):
    """The first is over once it has begun, before a run is done; the second does it all, on a GPU."""
    write_binary(tmp_path / "data")
    chosen = ("--variant=tiny", "--treatments=siren_2d,span_2d", "--seeds=1", "--config.train.total_steps=20")
    arguments = ("--data=data", "--workdir=runs", *chosen)
    first = reproduce(*arguments, "--minutes=0.15", cwd=tmp_path)
    assert first.returncode == 143, first.stderr
    assert first.stderr.splitlines()[-1] == "the time is up: the same command goes on"
    second = reproduce(*arguments, cwd=tmp_path, PATH=f"{with_a_gpu(tmp_path / 'bin')}:{os.environ['PATH']}")
    assert second.returncode == 0, second.stderr
    commands = json.loads((tmp_path / "runs" / "sweep.json").read_text())["commands"]
    assert ["--vmap_seeds=5" in command for command in commands] == [False, True]
    assert len(list((tmp_path / "runs").glob("*/1/summary.json"))) == 2
    results = json.loads((tmp_path / "runs" / "report" / "results.json").read_text())
    assert [treatment["treatment"]["name"] for treatment in results["treatments"]] == ["siren_2d", "span_2d"]
    assert "0.8095" in (tmp_path / "runs" / "report" / "report.md").read_text()  # the paper's, next to it
