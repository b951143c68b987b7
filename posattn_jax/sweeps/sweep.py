"""Runs a plan: every treatment with every seed, each in a run folder of its own, by workers that submitit starts.

  WORKDIR/sweep.json                 the plan, and how it was run
  WORKDIR/TREATMENT/SEED/            the run folders
  WORKDIR/logs/TREATMENT/SEED.txt    what they printed
  WORKDIR/jobs/                      submitit's own files

What is done is known from these files alone: the same command goes on where it was stopped, however it was.
"""

import contextlib
import dataclasses
import datetime
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

import submitit

from posattn_jax.errors import InputError, RunError
from posattn_jax.sweeps.jobs import Job, is_claimed
from posattn_jax.sweeps.table import ProgressTable
from posattn_jax.sweeps.worker import Worker

# How often workers are started: again where a run, or a worker, was killed from outside.
ROUNDS = 3
SECONDS_BETWEEN_LOOKS = 2.0


@dataclasses.dataclass(frozen=True)
class Executor:
    """Where the workers run.

    Attributes:
      cluster: "local" or "slurm".
      workers: the runs at a time; 0: on this machine one a GPU, or one.
      timeout_minutes: of a SLURM job, which is then submitted anew.
      slurm: further parameters of a SLURM job, such as {"partition": "gpu"}.
    """

    cluster: str = "local"
    workers: int = 0
    timeout_minutes: int = 24 * 60
    slurm: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        if self.workers < 0:
            raise InputError(f"--workers={self.workers}: expected 0 or more")
        if self.timeout_minutes < 1:
            raise InputError(f"--timeout_minutes={self.timeout_minutes}: expected at least 1")
        if self.cluster == "slurm" and shutil.which("srun") is None:
            raise InputError('--executor=slurm: this machine has no command "srun"')
        if self.slurm and self.cluster != "slurm":
            raise InputError(f"--slurm={','.join(self.slurm)}: --executor is {self.cluster}")


def run(jobs: Sequence[Job], folder: pathlib.Path, executor: Executor) -> None:
    """Runs what is not finished, and shows how far it is.

    Raises:
      RunError: some runs failed, named with what they said; the others are done.
      KeyboardInterrupt, SystemExit: by Ctrl-C and SIGTERM, after the runs have saved.
    """
    call = f"{datetime.datetime.now():%Y-%m-%d %H:%M:%S} {os.getpid()}"
    gpus = visible_gpus() if executor.cluster == "local" else []
    workers = executor.workers or max(1, len(gpus))
    slots = [folder / "jobs" / f"slot_{i}" for i in range(workers)]
    with _sigterm_raises(), ProgressTable(jobs) as table:
        for _ in range(ROUNDS):
            pending = [job for job in jobs if not job.finished and job.failure(call) is None]
            if not pending:
                break
            submitted = _submit(pending, slots, folder / "jobs", executor, gpus, call)
            try:
                while any(not job.done() for job in submitted) or any(map(is_claimed, slots)):
                    table.show()
                    time.sleep(SECONDS_BETWEEN_LOOKS)
            except BaseException:
                for job in submitted:
                    job.cancel()
                while executor.cluster == "local" and any(map(is_claimed, slots)):
                    time.sleep(0.1)  # the runs are saving
                raise
            finally:
                table.show()
    failed = [job for job in jobs if not job.finished]
    if failed:
        reasons = "; ".join(f"{job.name}: {job.failure() or 'stopped from outside'} (see {job.log})" for job in failed)
        raise RunError(f"{len(failed)} of {len(jobs)} runs failed: {reasons}; the same command tries them again")


@contextlib.contextmanager
def _sigterm_raises() -> Iterator[None]:
    previous = signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _submit(
    pending: Sequence[Job],
    slots: Sequence[pathlib.Path],
    folder: pathlib.Path,
    executor: Executor,
    gpus: Sequence[str],
    call: str,
) -> list[submitit.Job]:
    """Starts a worker for every slot that has something to do."""
    submitter = submitit.AutoExecutor(folder, cluster=executor.cluster, slurm_max_num_timeout=1000)
    minutes = executor.timeout_minutes if executor.cluster == "slurm" else 10**6
    try:
        submitter.update_parameters(name="posattn_jax", timeout_min=minutes, stderr_to_stdout=True)
        if executor.cluster == "slurm":
            one_gpu = {"gpus_per_node": 1} if "gpus_per_node" not in executor.slurm else {}
            submitter.update_parameters(**one_gpu, **{f"slurm_{name}": value for name, value in executor.slurm.items()})
    except NameError as error:
        raise InputError(f"--slurm: {' '.join(str(error).split())}") from error
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    share = executor.cluster == "local" and not gpus and len(slots) <= len(cores)
    submitted = []
    for i, slot in enumerate(slots[: len(pending)]):
        environment = {}
        if gpus:
            environment["CUDA_VISIBLE_DEVICES"] = gpus[i % len(gpus)]
            on_this_gpu = -(-len(slots) // len(gpus))
            if on_this_gpu > 1:
                environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{0.9 / on_this_gpu:.3f}"
        own_cores = tuple(cores[i :: len(slots)]) if share else ()
        submitted.append(submitter.submit(Worker(slot, call, tuple(pending), own_cores, environment)))
    return submitted


def visible_gpus() -> list[str]:
    """NVIDIA's GPUs of this machine, without starting a library on them: a run is to have each to itself."""
    asked_for = os.environ.get("CUDA_VISIBLE_DEVICES")
    if asked_for is not None:
        return [gpu for gpu in asked_for.split(",") if gpu and gpu != "-1"]
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return []
    return [str(i) for i, line in enumerate(listed.splitlines()) if line.startswith("GPU ")]
