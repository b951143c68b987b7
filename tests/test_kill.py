"""SIGKILL at random moments of a run and of a sweep, restarted each time: minutes, so only with `-m slow`."""

import json
import os
import random
import subprocess
import sys
import time

import pytest

from posattn_jax.files import read_metrics
from tests.command import ROOT
from tests.made_text import write_text

KILLS = 10


DIGITS = ("--config=configs/digits.py", "--config.train.total_epochs=8")
BERT = ("--config=configs/bert_tiny.py:composite", "--config.train.total_steps=400", "--config.train.log_steps=10")
BERT += ("--config.data.vocabulary_size=50", "--config.data.length=20")


def start(workdir, arguments):
    always = (f"--workdir={workdir}", "--config.train.checkpoint_steps=10")
    command = [sys.executable, "-m", "posattn_jax.main", *arguments, *always]
    environment = os.environ | {"XLA_FLAGS": ""}  # one device, at full speed
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [DIGITS, BERT], ids=["digits", "masked_lm"])
def test_a_killed_run_ends_as_if_never_stopped(tmp_path, arguments):
    if arguments is BERT:
        text = write_text(tmp_path / "text", 4000)
        arguments = (*BERT, f"--config.data.dir={text}", f"--config.data.cache_dir={tmp_path / 'cache'}")
    whole = start(tmp_path / "whole", arguments)
    started = time.perf_counter()
    out, _ = whole.communicate()
    seconds = time.perf_counter() - started
    assert whole.returncode == 0, out

    moments, kills = random.Random(0), 0
    while kills < KILLS:
        process = start(tmp_path / "killed", arguments)
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
    last = start(tmp_path / "killed", arguments)
    out, _ = last.communicate()
    assert last.returncode == 0, out
    assert kills == KILLS, "the run ended before it was killed often enough"

    rows = [
        [row for row in read_metrics(tmp_path / name / "metrics.jsonl") if row["split"] != "speed"]
        for name in ("whole", "killed")
    ]
    assert rows[0] == rows[1]


SWEEP_KILLS = 3


def start_sweep(workdir):
    chosen = ["--treatments=siren_2d,span_2d", "--seeds=1,2", "--config.train.total_epochs=3", "--workers=2"]
    command = [sys.executable, "-m", "posattn_jax.main", "--mode=sweep", "--config=configs/digits.py", *chosen]
    return subprocess.Popen(
        [*command, "--config.train.checkpoint_steps=10", f"--workdir={workdir}"],
        cwd=ROOT,
        env=os.environ | {"XLA_FLAGS": ""},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def table_of(workdir):
    """What the report says of treatments and hypotheses, without the clock."""
    results = json.loads((workdir / "report" / "results.json").read_text())
    for treatment in results["treatments"]:
        del treatment["hours"]
    return results["treatments"], results["hypotheses"]


@pytest.mark.slow
def test_a_killed_sweep_gives_the_same_table(tmp_path):
    """Everything is killed at once: the sweep, its workers and their runs all name the folder."""
    started = time.perf_counter()
    assert start_sweep(tmp_path / "whole").wait() == 0
    seconds = time.perf_counter() - started
    moments, killed = random.Random(1), tmp_path / "killed"
    for kill in range(SWEEP_KILLS):
        process = start_sweep(killed)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=moments.uniform(0.1, 0.3) * seconds)
        subprocess.run(["pkill", "-KILL", "-f", str(killed)], check=True)
        process.wait()
        print(f"kill {kill + 1}: {sorted(path.name for path in killed.glob('*/*/checkpoints/*'))}")
    assert start_sweep(killed).wait() == 0
    assert table_of(killed) == table_of(tmp_path / "whole")
