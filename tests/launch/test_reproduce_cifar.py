"""The paper's runs in slices of time."""

import json
import os
import pathlib
import subprocess

import pytest

from tests.support.command import environment
from tests.support.made_data import write_binary

SCRIPT = pathlib.Path(__file__).parents[2] / "launch" / "reproduce_cifar.sh"


def reproduce(*arguments, cwd=None, **variables):
    env = environment() | variables
    return subprocess.run([SCRIPT, *arguments], cwd=cwd, env=env, capture_output=True, text=True, timeout=900)


@pytest.mark.parametrize("arguments", [(), ("--data=here", "--minutes=soon"), ("--data=here", "--minutes=0.0")])
def test_what_is_missing_is_told(arguments):
    done = reproduce(*arguments)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 3
    assert "--data is needed, and --minutes is a number above 0" in done.stderr


def test_slices_are_those_of_the_launcher(tmp_path):
    """From any folder, by a relative path too."""
    python = tmp_path / "python"
    python.write_text('#!/bin/bash\npwd\nprintf "%s\\n" "$@"\n')
    python.chmod(0o755)
    script = os.path.relpath(SCRIPT, tmp_path)
    command = [script, "--data=my data", "--slices=out", "--minutes=0.5", "--parts=3"]
    done = subprocess.run(command, cwd=tmp_path, env=environment() | {"PYTHON": str(python)}, capture_output=True)
    assert done.returncode == 0, done.stderr
    folder, *options, queue, rest = done.stdout.decode().splitlines()
    assert options == [
        *("-m", "posattn_jax.sweeps.slices", "--minutes=0.5"),
        *(f"--out={tmp_path}/out", f"--data={tmp_path}/my data"),
    ]
    assert (pathlib.Path(folder) / queue).is_file() and rest == "--parts=3"


@pytest.mark.parametrize("ignored", ["--variant=quick", "--workdir=runs/cifar"])
def test_slices_refuse_what_the_list_has(ignored):
    done = reproduce("--data=data", "--slices=out", ignored)
    assert (
        done.returncode == 2
        and done.stderr.count("\n") == 1
        and "expected no --variant and no --workdir" in done.stderr
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
