"""A sweep whose workers vmap seeds, with runs that only pretend."""

import dataclasses
import re
import sys

import pytest

from posattn_jax.sweeps import sweep
from posattn_jax.sweeps.jobs import seed_groups
from posattn_jax.sweeps.sweep import Executor
from posattn_jax.system.errors import InputError, RunError
from posattn_jax.system.processes import claim
from tests.sweeps.test_sweep import make_job, notes

# As a run of each seed, one after the other; or fails.
VMAPPED = """
import subprocess, sys
script, folder, exit_code, seeds = sys.argv[1:]
if exit_code != "0":
    print("posattn_jax: error: no luck vmapped")
    sys.exit(int(exit_code))
for seed in seeds.removeprefix("--seeds=").split(","):
    subprocess.run([sys.executable, script, f"{folder}/{seed}", "0", "0"], check=True)
"""


def make(folder, seed, vmapped_exit_code=0, treatment="a", **fields):
    job, script = make_job(folder, seed, seconds=0, treatment=treatment, **fields), folder / "vmapped.py"
    script.write_text(VMAPPED)
    command = (sys.executable, str(script), str(folder / "run.py"), str(job.workdir.parent), str(vmapped_exit_code))
    return dataclasses.replace(job, command_of_seeds=command)


def commands_of(job):
    """What was called, and how it ended."""
    lines = [line for line in job.log.read_text().splitlines() if line.startswith("[sweep")]
    return [
        (re.search(r"--seeds=([\d,]+)", call)[1] if "--seeds" in call else "alone", int(end.split()[-1]))
        for call, end in zip(lines[::2], lines[1::2], strict=True)
    ]


def test_groups_are_of_one_treatment(tmp_path):
    jobs = [make(tmp_path, seed, treatment=name) for seed in (1, 2, 3) for name in ("a", "b")]
    assert [[job.name for job in group] for group in seed_groups(jobs, 2)] == [
        ["a/1", "a/2"],
        ["b/1", "b/2"],
        ["a/3"],
        ["b/3"],
    ]
    assert seed_groups(jobs, 1) == [(job,) for job in jobs]


def test_seeds_are_vmapped_and_evaluated_alone(tmp_path):
    """Those which are done, or which someone else is at work on, are not among them."""
    jobs = [make(tmp_path, seed) for seed in range(5)]
    sweep.run(jobs[:1], tmp_path, Executor(workers=1, vmap_seeds=5))
    assert commands_of(jobs[0]) == [("alone", 0)]
    evaluation = (sys.executable, "-c", "print('evaluated')")
    jobs = [dataclasses.replace(job, commands=(*job.commands, evaluation)) for job in jobs]
    with claim(jobs[4].log) as log:
        assert log is not None
        worker = next(sweep._workers(jobs, [tmp_path / "slot"], Executor(workers=1, vmap_seeds=5), [], "call"))
        worker()
    assert [len(notes(job, "start")) for job in jobs] == [1, 1, 1, 1, 0]
    assert commands_of(jobs[1]) == commands_of(jobs[3]) == [("1,2,3", 0), ("alone", 0)]
    assert jobs[3].log.read_text().count("evaluated\n") == 1
    assert f"what it printed is in {jobs[1].log}" in jobs[3].log.read_text()


@pytest.mark.slow
def test_what_fails_vmapped_is_tried_alone(tmp_path):
    """So one bad seed, or too little memory, stops no other."""
    jobs = [make(tmp_path, 1, 1), make(tmp_path, 2, 1, exit_code=1), make(tmp_path, 3, 1)]
    with pytest.raises(RunError, match="1 of 3 .*: a/2: .*no luck"):
        sweep.run(jobs, tmp_path, Executor(workers=1, vmap_seeds=3))
    assert [job.finished for job in jobs] == [True, False, True]
    assert commands_of(jobs[1]) == [("1,2,3", 1), ("alone", 1)]
    assert "no luck vmapped" in jobs[0].log.read_text()


def test_what_is_stopped_vmapped_is_not_tried_alone(tmp_path):
    jobs = [make(tmp_path, seed, 143) for seed in (1, 2)]
    next(sweep._workers(jobs, [tmp_path / "slot"], Executor(vmap_seeds=2), [], "call"))()
    assert [commands_of(job) for job in jobs] == [[("1,2", 143)]] * 2
    assert jobs[1].failure() is None


def test_no_seeds_to_vmap():
    with pytest.raises(InputError, match="--vmap_seeds=0"):
        Executor(vmap_seeds=0)
