"""A run of two processes on a real SLURM, such as launch/slurm_here.sh starts: queued again, cancelled, finished."""

import math
import os
import shutil
import subprocess
import sys
import time

import pytest

from tests.support.command import ROOT
from tests.support.recorded import figures_of

CONFIG = ("--config=configs/digits.py:tiny", "--config.train.total_steps=300", "--config.train.log_steps=10")
ENVIRONMENT = os.environ | {"XLA_FLAGS": "--xla_backend_optimization_level=0"}  # one device for every process


def answers():
    return shutil.which("sbatch") is not None and subprocess.run(["sinfo"], capture_output=True).returncode == 0


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not answers(), reason="no SLURM answers here: launch/slurm_here.sh starts one"),
]


def call(*command):
    return subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def submit():
    """Submits a run of two processes, and returns the job's number."""
    jobs = []

    def submit_(workdir):
        run = ("launch/slurm.sh", *CONFIG, f"--workdir={workdir}", "--config.mesh.data=2")
        jobs.append(call("sbatch", "--parsable", "--ntasks=2", f"--output={workdir}.txt", *run))
        return jobs[-1]

    yield submit_
    subprocess.run(["scancel", "--quiet", *jobs], check=False)


def is_over(job):
    return call("squeue", "--noheader", "--me", "--format=%A").split().count(job) == 0


def rows_of(workdir):
    return figures_of(workdir) if (workdir / "metrics.jsonl").exists() else []


def wait_for(condition, seconds=1800):
    deadline = time.time() + seconds
    while not condition():
        assert time.time() < deadline
        time.sleep(0.5)


def wait_for_steps(workdir, num):
    """Beyond what is there."""
    step = lambda: max((row["step"] for row in rows_of(workdir)), default=0)
    before = step()
    wait_for(lambda: step() >= before + num)


def test_two_processes_queued_again_and_cancelled_end_as_one_that_was_never_stopped(tmp_path, submit):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    call(sys.executable, "-m", "posattn_jax.main", *CONFIG, f"--workdir={whole}")
    job = submit(stopped)
    wait_for_steps(stopped, 40)
    call("scontrol", "requeue", job)
    wait_for(lambda: "saved" in stopped.with_suffix(".txt").read_text())
    wait_for_steps(stopped, 40)
    call("scancel", job)
    wait_for(lambda: is_over(job))
    said = stopped.with_suffix(".txt").read_text()
    assert said.count("saved: the same command continues") >= 2
    assert not (stopped / "summary.json").exists()
    job = submit(stopped)
    wait_for(lambda: is_over(job))
    assert (stopped / "summary.json").exists()
    expected, found = rows_of(whole), rows_of(stopped)
    assert len(expected) == len(found)
    for one, two in zip(expected, found, strict=True):
        assert {**one, "value": None} == {**two, "value": None}
        assert math.isclose(one["value"], two["value"], rel_tol=1e-5, abs_tol=1e-5), (one, two)
