"""SIGKILL at random moments of a run and of a sweep, restarted each time: minutes, so only with `-m slow`."""

import json
import os
import random
import subprocess
import sys
import time

import pytest

from tests.support.command import ROOT
from tests.support.made_text import write_text
from tests.support.recorded import figures_of

DIGITS = ("--config=configs/digits.py", "--config.train.total_epochs=40")
BERT = ("--config=configs/bert.py:tiny,composite", "--config.train.total_steps=400", "--config.train.log_steps=10")
BERT += ("--config.data.vocabulary_size=50", "--config.data.length=20")


def start(workdir, arguments):
    always = (f"--workdir={workdir}", "--config.train.checkpoint_steps=10")
    command = [sys.executable, "-m", "posattn_jax.main", *arguments, *always]
    cache = {"JAX_COMPILATION_CACHE_DIR": os.environ["POSATTN_TEST_CACHE"]}
    environment = os.environ | cache | {"XLA_FLAGS": ""}  # one device, at full speed
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def last_saved(workdir):
    """The step of the last checkpoint."""
    return max((int(path.name) for path in workdir.glob("checkpoints/*") if path.name.isdigit()), default=0)


@pytest.mark.slow
@pytest.mark.parametrize("arguments, num_kills", [(DIGITS, 50), (BERT, 10)], ids=["digits", "masked_lm"])
def test_a_killed_run_ends_as_if_never_stopped(tmp_path, arguments, num_kills):
    if arguments is BERT:
        text = write_text(tmp_path / "text", 4000)
        arguments = (*BERT, f"--config.data.dir={text}", f"--config.cache_dir={tmp_path / 'cache'}")
    started = time.perf_counter()
    whole = start(tmp_path / "whole", arguments)
    while not any((tmp_path / "whole" / "checkpoints").glob("[0-9]*")):
        assert whole.poll() is None, whole.stdout.read()
        time.sleep(0.1)
    to_the_first = time.perf_counter() - started
    out, _ = whole.communicate()
    assert whole.returncode == 0, out

    moments = random.Random(0)
    for kill in range(num_kills):
        before = last_saved(tmp_path / "killed")
        process = start(tmp_path / "killed", arguments)
        until = time.perf_counter() + moments.uniform(0.3, 1.5) * to_the_first
        while time.perf_counter() < until and last_saved(tmp_path / "killed") < before + 20:
            time.sleep(0.05)
        assert process.poll() is None, f"it ended before it was killed {num_kills} times: {process.communicate()[0]}"
        process.kill()
        process.communicate()
        saved = sorted(path.name for path in (tmp_path / "killed").glob("checkpoints/*"))
        print(f"kill {kill + 1} of {num_kills}: {saved}")
    last = start(tmp_path / "killed", arguments)
    out, _ = last.communicate()
    assert last.returncode == 0, out

    assert figures_of(tmp_path / "killed") == figures_of(tmp_path / "whole")


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
