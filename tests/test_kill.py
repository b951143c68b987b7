"""SIGKILL at random moments of a digits run, restarted each time: minutes, so `launch/test.sh -m slow` runs it."""

import os
import random
import subprocess
import sys
import time

import pytest

from posattn_jax.files import read_metrics
from tests.test_main import ROOT

KILLS = 10


def start(workdir):
    arguments = [f"--workdir={workdir}", "--config.train.total_epochs=8", "--config.train.checkpoint_steps=10"]
    command = [sys.executable, "-m", "posattn_jax.main", "--config=configs/digits.py", *arguments]
    environment = os.environ | {"XLA_FLAGS": ""}  # one device, at full speed
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.mark.slow
def test_a_killed_run_ends_as_if_never_stopped(tmp_path):
    whole = start(tmp_path / "whole")
    started = time.perf_counter()
    out, _ = whole.communicate()
    seconds = time.perf_counter() - started
    assert whole.returncode == 0, out

    moments, kills = random.Random(0), 0
    while kills < KILLS:
        process = start(tmp_path / "killed")
        try:
            process.wait(timeout=moments.uniform(2, seconds / 3))
        except subprocess.TimeoutExpired:
            process.kill()
            kills += 1
        else:
            assert process.returncode == 0, process.stdout.read()
            break
        process.wait()
        print(f"kill {kills} of {KILLS}: {sorted(p.name for p in (tmp_path / 'killed').glob('checkpoints/*'))}")
    last = start(tmp_path / "killed")
    out, _ = last.communicate()
    assert last.returncode == 0, out
    assert kills == KILLS, "the run ended before it was killed often enough"

    rows = [
        [row for row in read_metrics(tmp_path / name / "metrics.jsonl") if row["split"] != "speed"]
        for name in ("whole", "killed")
    ]
    assert rows[0] == rows[1]
