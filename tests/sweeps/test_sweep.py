"""The life of a sweep, with runs that only pretend: seconds each."""

import contextlib
import dataclasses
import json
import os
import pathlib
import pickle
import platform
import signal
import subprocess
import sys
import threading
import time

import pytest

from posattn_jax.sweeps import slurm, sweep
from posattn_jax.sweeps.jobs import Job
from posattn_jax.sweeps.sweep import Executor, state, visible_gpus
from posattn_jax.sweeps.worker import Worker
from posattn_jax.system.errors import InputError, RunError
from posattn_jax.system.processes import claim, is_claimed

# Notes when it starts and ends, trains for a while that SIGTERM ends early with 143, and sums up.
RUN = """
import json, os, pathlib, signal, sys, time
workdir, seconds, exit_code = pathlib.Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
workdir.mkdir(parents=True, exist_ok=True)
def note(what):
    with open(workdir / "notes", "a") as file:
        file.write(f"{what} {time.time()} {sorted(os.sched_getaffinity(0))}\\n")
def stop(*_):
    time.sleep(0.5)
    note("saved")
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
note("start")
time.sleep(seconds)
note("end")
if exit_code:
    print("posattn_jax: error: no luck")
    sys.exit(exit_code)
best = {"step": 3, "epoch": 1.5, "loss": 1.0, "accuracy": 0.75}
(workdir / "summary.json").write_text(json.dumps({"best": best, "final": best}))
"""


def make_job(folder, seed, seconds=0.3, exit_code=0, treatment="a"):
    workdir, script = folder / treatment / str(seed), folder / "run.py"
    script.write_text(RUN)
    command = (sys.executable, str(script), str(workdir), str(seconds), str(exit_code))
    return Job(treatment, seed, workdir, folder / "logs" / treatment / f"{seed}.txt", (command,), 3, 0.0)


def notes(job, word):
    path = job.workdir / "notes"
    lines = path.read_text().splitlines() if path.exists() else []
    return [float(line.split()[1]) for line in lines if line.startswith(word)]


def test_two_workers_run_everything_once_two_at_a_time(tmp_path, capsys):
    jobs = [make_job(tmp_path, seed) for seed in range(5)]
    sweep.run(jobs, tmp_path, Executor(workers=2))
    assert all(job.finished and len(notes(job, "start")) == 1 for job in jobs)
    moments = sorted(
        [(t, 1) for job in jobs for t in notes(job, "start")] + [(t, -1) for job in jobs for t in notes(job, "end")]
    )
    running = [sum(change for _, change in moments[: i + 1]) for i in range(len(moments))]
    assert max(running) == 2
    cores = {(job.workdir / "notes").read_text().splitlines()[0].split("[")[1] for job in jobs}
    assert len(cores) == min(2, len(os.sched_getaffinity(0)))  # each worker on its own
    assert "a/0: done 0.7500" in capsys.readouterr().err
    # Nothing is left to do.
    sweep.run(jobs, tmp_path, Executor(workers=2))
    assert all(len(notes(job, "start")) == 1 for job in jobs)


@pytest.mark.slow
def test_a_failed_run_is_named_the_others_are_done_and_it_is_tried_again(tmp_path):
    jobs = [make_job(tmp_path, 1), make_job(tmp_path, 2, exit_code=1), make_job(tmp_path, 3)]
    with pytest.raises(RunError, match=r"1 of 3 runs failed: a/2: .*no luck .*2.txt"):
        sweep.run(jobs, tmp_path, Executor(workers=1))
    assert [job.finished for job in jobs] == [True, False, True] and len(notes(jobs[1], "start")) == 1
    assert state(jobs[1]) == "failed" and state(jobs[0]) == "done 0.7500"
    jobs[1] = make_job(tmp_path, 2)
    sweep.run(jobs, tmp_path, Executor(workers=1))
    assert jobs[1].finished and len(notes(jobs[0], "start")) == 1


# As a run whose device is full the first times, or fails in another way.
FULL = """
import pathlib, subprocess, sys
notes, times, *command = sys.argv[1:]
path = pathlib.Path(notes)
path.parent.mkdir(parents=True, exist_ok=True)
with path.open("a") as file:
    file.write("tried 0\\n")
if path.read_text().count("tried") <= int(times):
    print("posattn_jax: error: XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes.")
    sys.exit(1)
sys.exit(subprocess.run(command).returncode)
"""


def make_job_on_a_full_device(folder, seed, times, exit_code=0):
    job, script = make_job(folder, seed, 0, exit_code), folder / "full.py"
    script.write_text(FULL)
    command = (sys.executable, str(script), str(job.workdir / "notes"), str(times), *job.commands[0])
    return dataclasses.replace(job, commands=(command,))


@pytest.mark.slow
def test_a_run_whose_device_was_full_is_tried_again_when_the_others_have_ended(tmp_path):
    """As often as workers are started: it may need more than the device has. What fails otherwise is not."""
    fails = [(1, 0), (sweep.ROUNDS, 0), (1, 1), (0, 0)]
    jobs = [make_job_on_a_full_device(tmp_path, i, *each) for i, each in enumerate(fails)]
    with pytest.raises(RunError, match=r"2 of 4 .*: a/1: .*RESOURCE_EXHAUSTED.*; a/2: .*no luck"):
        sweep.run(jobs, tmp_path, Executor(workers=2))
    assert [len(notes(job, "tried")) for job in jobs] == [2, sweep.ROUNDS, 2, 1]
    assert notes(jobs[0], "start")[0] > notes(jobs[3], "end")[0]
    sweep.run(jobs[:2], tmp_path, Executor(workers=1))
    assert jobs[0].finished and jobs[1].finished


@pytest.mark.parametrize("said, is_due", [("RESOURCE_EXHAUSTED: Out of memory", True), ("no luck", False)])
def test_what_is_tried_again_in_a_call(tmp_path, said, is_due):
    job, call = make_job(tmp_path, 1), "call"
    job.log.parent.mkdir(parents=True)
    job.log.write_text(f"[sweep {call}] command\nposattn_jax: error: {said}\n[sweep {call}] exit code 1\n")
    assert not job.is_due(call) and state(job) == "failed"
    job.try_again("another call")
    assert not job.is_due(call)
    with claim(job.log):
        job.try_again(call)  # someone is at work on it
    assert not job.is_due(call)
    job.try_again(call)
    assert job.is_due(call) == is_due and (state(job) == "waiting") == is_due


@pytest.mark.slow
def test_a_run_that_someone_is_at_work_on_is_waited_for(tmp_path):
    job = make_job(tmp_path, 1)
    with claim(job.log) as log:
        assert log is not None and is_claimed(job.log) and state(job) == "running 0%"
        with claim(job.log) as second:
            assert second is None
        process = start(tmp_path, 0.3, seeds=[1])
        time.sleep(5)
        assert process.poll() is None and not notes(job, "start")
    assert process.wait(timeout=60) == 0
    assert job.finished and not is_claimed(job.log)


@pytest.mark.slow
def test_a_killed_run_failed_and_the_next_call_starts_it_again(tmp_path):
    """Its memory may have been too little: the same call does not try for ever."""
    job = make_job(tmp_path, 1, seconds=3)
    killer = subprocess.Popen(
        [sys.executable, "-c", KILLER, str(tmp_path / "a" / "1" / "notes")], stdout=subprocess.DEVNULL
    )
    with pytest.raises(RunError, match="a/1: exit code -9"):
        sweep.run([job], tmp_path, Executor(workers=1))
    assert killer.wait() == 0
    sweep.run([job], tmp_path, Executor(workers=1))
    assert job.finished and len(notes(job, "start")) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "signum, state_of_job",
    [(signal.SIGUSR2, "RUNNING"), (signal.SIGTERM, "RUNNING"), (signal.SIGTERM, "COMPLETING")],
    ids=["time limit", "preempted", "cancelled"],
)
def test_slurm_lets_the_run_save_and_the_worker_is_queued_again(tmp_path, monkeypatch, signum, state_of_job):
    """As submitit does it: from a signal handler, while the worker waits for its run. Not where it was cancelled."""
    make_commands(tmp_path, squeue=f"echo {state_of_job}")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "slurm")
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    job = make_job(tmp_path, 1, seconds=60)
    worker = Worker(tmp_path / "slot", "call", ((job,), (make_job(tmp_path, 2),)))
    again = []

    def warned(signum, frame):
        again.append(worker.checkpoint())
        sys.exit(-1)

    def warn():
        wait_for(lambda: notes(job, "start"))
        os.kill(os.getpid(), signum)

    previous = {each: signal.signal(each, warned) for each in (signal.SIGUSR2, signal.SIGTERM)}
    warner = threading.Thread(target=warn)
    warner.start()
    try:
        with pytest.raises(SystemExit):
            worker()
    finally:
        warner.join()
        for each, handler in previous.items():
            signal.signal(each, handler)
    assert len(notes(job, "saved")) == 1 and not job.running and job.failure() is None
    assert not worker.groups[1][0].finished
    if state_of_job != "RUNNING":
        assert not again
        return
    (submission,) = again
    resubmitted = pickle.loads(pickle.dumps(submission.function))
    monkeypatch.delenv("SUBMITIT_EXECUTOR")
    dataclasses.replace(resubmitted, groups=((make_job(tmp_path, 1),), *resubmitted.groups[1:]))()
    assert job.finished and worker.groups[1][0].finished


def make_commands(folder, **texts):
    """Shell scripts instead of SLURM's commands."""
    for name, text in texts.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)


@pytest.mark.slow
def test_the_jobs_of_a_slurm_array_share_a_sweep(tmp_path, monkeypatch):
    """None waits for what another has begun."""
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "7")
    jobs = [make_job(tmp_path, seed) for seed in (1, 2)]
    monkeypatch.setenv("SLURM_JOB_ID", "8")
    with claim(jobs[0].log) as log, claim(tmp_path / "jobs" / "slurm_9" / "slot_0") as slot:
        assert log is not None and slot is not None
        assert not sweep.run(jobs, tmp_path, Executor())
    assert jobs[1].finished and not notes(jobs[0], "start")
    assert sweep.run(jobs, tmp_path, Executor()) and jobs[0].finished


@pytest.mark.slow
def test_what_failed_in_a_slurm_array_is_not_tried_again_in_it(tmp_path, monkeypatch):
    job = make_job(tmp_path, 3, exit_code=1)
    for array, number, starts in (("7", "8", 1), ("7", "9", 1), ("10", "10", 2)):
        monkeypatch.setenv("SLURM_ARRAY_JOB_ID", array)
        monkeypatch.setenv("SLURM_JOB_ID", number)
        with pytest.raises(RunError, match="1 of 1 .*: a/3: .*no luck"):
            sweep.run([job], tmp_path, Executor())
        assert len(notes(job, "start")) == starts


def test_slurm_says_which_jobs_are_over(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(slurm, "SECONDS_BETWEEN_QUESTIONS", 0.0)
    queue = slurm.Queue(["12", "13"])
    for answer, is_empty in (("echo 11; echo 12", False), ("exit 1", False), ("echo 13", True), ("exit 1", True)):
        make_commands(tmp_path, squeue=answer)
        assert queue.is_empty == is_empty
    make_commands(tmp_path, squeue='test "$*" = "--noheader --jobs=12 --format=%T" && echo RUNNING')
    assert slurm.is_running("12") and not slurm.is_running("13")
    monkeypatch.setenv("PATH", "")
    assert not slurm.is_running("12")


KILLER = """
import pathlib, subprocess, sys, time
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.05)
subprocess.run(["pkill", "-9", "-f", str(pathlib.Path(sys.argv[1]).parent) + " 3"], check=True)
"""

# A sweep in a process of its own, to be killed.
SWEEP = """
import pathlib, sys
from posattn_jax.sweeps import sweep
from posattn_jax.sweeps.sweep import Executor
from tests.sweeps.test_sweep import make_job
folder = pathlib.Path(sys.argv[1])
try:
    jobs = [make_job(folder, seed, float(sys.argv[2])) for seed in map(int, sys.argv[3:])]
    sweep.run(jobs, folder, Executor(workers=2))
except KeyboardInterrupt:
    sys.exit(130)
"""


def start(folder, seconds, seeds=(0, 1, 2)):
    command = [sys.executable, "-c", SWEEP, str(folder), str(seconds), *map(str, seeds)]
    return subprocess.Popen(command, start_new_session=True, cwd=pathlib.Path.cwd())


def wait_for(condition, seconds=60):
    deadline = time.time() + seconds
    while not condition():
        assert time.time() < deadline
        time.sleep(0.05)


def kill_as_timeout(pid, signum):
    """`timeout` signals its command, and then the group."""
    os.kill(pid, signum)
    time.sleep(0.01)
    os.killpg(pid, signum)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kill, signum, exit_code",
    [(os.killpg, signal.SIGINT, 130), (os.kill, signal.SIGTERM, 143), (kill_as_timeout, signal.SIGTERM, 143)],
    ids=["terminal", "kill", "timeout"],
)
def test_ctrl_c_lets_the_runs_save_and_the_same_command_goes_on(tmp_path, kill, signum, exit_code):
    """From a terminal the signal reaches every process of the group, from `kill` only the sweep."""
    jobs = [make_job(tmp_path, seed) for seed in range(3)]
    ignored = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as by a shell that starts it in the background
    process = start(tmp_path, 300)
    signal.signal(signal.SIGINT, ignored)
    wait_for(lambda: notes(jobs[0], "start") and notes(jobs[1], "start"))
    kill(process.pid, signum)
    assert process.wait(timeout=60) == exit_code
    assert len(notes(jobs[0], "saved")) == len(notes(jobs[1], "saved")) == 1 and not notes(jobs[2], "start")
    assert start(tmp_path, 0.3).wait(timeout=90) == 0
    assert all(job.finished for job in jobs)


@pytest.mark.slow
def test_a_command_that_waits_for_anothers_workers_says_so(tmp_path, capsys, monkeypatch):
    job, place = make_job(tmp_path, 1), tmp_path / "jobs" / platform.node()
    place.mkdir(parents=True)
    sleep = time.sleep
    with contextlib.ExitStack() as others:
        others.enter_context(claim(place / "slot_0"))
        monkeypatch.setattr(sweep.time, "sleep", lambda seconds: (others.close(), sleep(seconds)))
        assert sweep.run([job], tmp_path, Executor(workers=1))
    assert "--workers=1: 1 of them are busy" in capsys.readouterr().out
    assert job.finished


@pytest.mark.slow
def test_a_command_ends_when_its_runs_have_though_another_goes_on(tmp_path):
    """Also on Ctrl-C: it waits for its own runs to save, not for those of the other."""
    job, place = make_job(tmp_path, 1), tmp_path / "jobs" / platform.node()
    with claim(place / "slot_1") as other:
        assert other is not None and sweep.run([job], tmp_path, Executor(workers=2)) and job.finished
        stopped = make_job(tmp_path, 2)
        process = start(tmp_path, 300, seeds=(2,))
        wait_for(lambda: notes(stopped, "start"))
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130 and len(notes(stopped, "saved")) == 1


@pytest.mark.slow
def test_a_killed_sweep_runs_nothing_twice_at_a_time(tmp_path):
    """Its workers outlive SIGKILL; the same command waits for them and does the rest."""
    jobs = [make_job(tmp_path, seed) for seed in range(3)]
    process = start(tmp_path, 2)
    wait_for(lambda: notes(jobs[0], "start"))
    process.kill()
    process.wait()
    assert start(tmp_path, 2).wait(timeout=90) == 0
    for job in jobs:
        assert job.finished
        assert len(notes(job, "start")) == 1
    moments = sorted(
        [(t, 1) for job in jobs for t in notes(job, "start")] + [(t, -1) for job in jobs for t in notes(job, "end")]
    )
    assert max(sum(change for _, change in moments[: i + 1]) for i in range(len(moments))) <= 2


def test_a_longer_training_is_not_finished(tmp_path):
    job = make_job(tmp_path, 1)
    job.workdir.mkdir(parents=True)
    final = {"step": 30, "epoch": 3.0, "accuracy": 0.5, "loss": 1.0}
    (job.workdir / "summary.json").write_text(json.dumps({"best": final | {"step": 20}, "final": final}))

    def finished(**changes):
        return dataclasses.replace(job, **({"total_steps": 0, "total_epochs": 3.0} | changes)).finished

    assert finished() and finished(total_steps=30, total_epochs=99.0) and finished(total_epochs=3.04)
    assert not finished(total_epochs=4.0) and not finished(total_steps=31)
    evaluate = {"data.pool": 1, "data.grid_shape": (4, 4)}
    assert not finished(evaluate=evaluate)
    for step, pool in ((10, 1), (20, 2), (20, 1)):  # of an earlier best epoch; on another grid; right
        config = {"data": {"pool": pool, "grid_shape": (4, 4)}}
        (job.workdir / "evaluation.json").write_text(json.dumps({"step": step, "config": config}))
        assert finished(evaluate=evaluate) == ((step, pool) == (20, 1))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"workers": -1}, "--workers=-1"),
        ({"timeout_minutes": 0}, "--timeout_minutes=0"),
        ({"timeout_minutes": 9}, "--timeout_minutes=9: .*--executor=slurm"),
        ({"slurm": {"partition": "gpu"}}, "--slurm=partition: .*--executor=slurm"),
        ({"cluster": "slurm"}, 'this machine has no command "srun"'),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_executors_are_named(monkeypatch, options, message):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InputError, match=message):
        Executor(**options)


def test_gpus_are_counted_without_using_them(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    assert visible_gpus() == ["2", "5"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert visible_gpus() == []
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert visible_gpus() == []
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU 0: H200 (UUID: x)'\necho 'GPU 1: H200 (UUID: y)'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert visible_gpus() == ["0", "1"]


def test_every_gpu_has_its_worker(monkeypatch, tmp_path):
    """Four workers on two GPUs share them, and their memory, of which none takes more than it needs."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    for name in ("MEM_FRACTION", "PREALLOCATE"):
        monkeypatch.delenv(f"XLA_PYTHON_CLIENT_{name}", raising=False)
    jobs, slots = [make_job(tmp_path, seed) for seed in range(9)], [tmp_path / f"slot_{i}" for i in range(4)]
    workers = list(sweep._workers(jobs, slots, Executor(workers=4), visible_gpus(), "call"))
    assert [worker.environment["CUDA_VISIBLE_DEVICES"] for worker in workers] == ["4", "7", "4", "7"]
    assert {worker.environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] for worker in workers} == {"0.450"}
    assert {worker.environment["XLA_PYTHON_CLIENT_PREALLOCATE"] for worker in workers} == {"false"}
    assert all(worker.cores == () for worker in workers)
    # What the user has set stays, and a worker that has a GPU alone takes what jax takes.
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "true")
    (worker, *_) = sweep._workers(jobs, slots, Executor(workers=4), visible_gpus(), "call")
    assert worker.environment == {"CUDA_VISIBLE_DEVICES": "4", "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.450"}
    (worker, _) = sweep._workers(jobs, slots[:2], Executor(workers=2), visible_gpus(), "call")
    assert worker.environment == {"CUDA_VISIBLE_DEVICES": "4"}
    # Without any, what submitit hides from its workers is as it was for the runs.
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    (worker,) = sweep._workers(jobs, slots[:1], Executor(workers=1), [], "call")
    assert worker.environment == {"CUDA_VISIBLE_DEVICES": None}


def test_a_job_takes_the_slot_that_is_free(tmp_path):
    jobs, slots = [make_job(tmp_path, seed) for seed in range(3)], [tmp_path / f"slot_{i}" for i in range(3)]
    with claim(slots[0]) as other:
        assert other is not None
        taken = [[worker.slot for worker in sweep._workers(jobs[:n], slots, Executor(), [], "call")] for n in (1, 3)]
    assert taken == [slots[1:2], [slots[1], slots[2], slots[0]]]


# What submitit asks of SLURM: sbatch prints a job number, sacct knows nothing.
SBATCH = """
for last; do :; done
cp "$last" {folder}/submitted.sh
echo "Submitted batch job 12"
"""


def test_slurm_is_asked_for_a_gpu_a_worker_and_its_parameters(monkeypatch, tmp_path):
    make_commands(tmp_path, sbatch=SBATCH.format(folder=tmp_path), srun="", sacct="")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    executor = Executor("slurm", 1, 90, {"partition": "gpu", "mem_gb": 32, "setup": "module load cuda"})
    (worker,) = sweep._workers([make_job(tmp_path, 1)], [tmp_path / "slot"], executor, [], "call")
    job = sweep._submit(worker, tmp_path / "jobs", executor)
    text = (tmp_path / "submitted.sh").read_text()
    assert job.job_id == "12"
    for line in (
        "--partition=gpu",
        "--time=90",
        "--gpus-per-node=1",
        "--job-name=posattn_jax",
        "--mem=32GB",
        "module load",
    ):
        assert line in text
    with pytest.raises(InputError, match=r"--slurm: .*colour"):
        sweep._submit(worker, tmp_path / "jobs", Executor("slurm", 1, 90, {"colour": "red"}))
