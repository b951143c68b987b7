"""Runs a plan: every treatment with every seed, each in its own run folder, by workers that submitit starts.

  WORKDIR/sweep.json                 the plan, and the commands that ran it
  WORKDIR/TREATMENT/SEED/            the run folders
  WORKDIR/logs/TREATMENT/SEED.txt    the output of the runs
  WORKDIR/jobs/                      submitit's own files; for local workers, a folder for every host or SLURM job

The state of a sweep is only in these files. After any kind of stop, the same command continues it. Several hosts, or
the jobs of a SLURM array, may work on one sweep, if the file system's locks work across hosts.
"""

import contextlib
import dataclasses
import datetime
import os
import pathlib
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import Any, NoReturn

import submitit
from rich.console import Console
from rich.live import Live
from rich.table import Table

from posattn_jax.sweeps import slurm
from posattn_jax.sweeps.jobs import Job, seed_groups
from posattn_jax.sweeps.worker import Worker
from posattn_jax.system.errors import InputError, RunError
from posattn_jax.system.processes import is_claimed, signals

# How often workers are started: again if one was killed from outside, if a run without a worker has ended, or if a run
# failed because its device was full or taken.
ROUNDS = 3
SECONDS_BETWEEN_LOOKS = 2.0


@dataclasses.dataclass(frozen=True)
class Executor:
    """Where the workers run.

    Attributes:
      cluster: "local" or "slurm".
      workers: the number of runs at a time; 0: one per GPU of this machine, or one.
      timeout_minutes: the time limit of a SLURM job, which is then submitted again; None: a day.
      slurm: further parameters of a SLURM job, such as {"partition": "gpu"}.
      vmap_seeds: the largest number of seeds of a treatment that one program trains.
    """

    cluster: str = "local"
    workers: int = 0
    timeout_minutes: int | None = None
    slurm: dict[str, Any] = dataclasses.field(default_factory=dict)
    vmap_seeds: int = 1

    def __post_init__(self):
        for name, least in (("workers", 0), ("vmap_seeds", 1), ("timeout_minutes", 1)):
            if (given := getattr(self, name)) is not None and given < least:
                raise InputError(f"--{name}={given}: expected at least {least}")
        for name, given in (("timeout_minutes", self.timeout_minutes), ("slurm", ",".join(self.slurm))):
            if given and self.cluster != "slurm":
                raise InputError(f"--{name}={given}: expected --executor=slurm, not {self.cluster}")
        if self.cluster == "slurm" and shutil.which("srun") is None:
            raise InputError('--executor=slurm: this machine has no command "srun"')


def run(jobs: Sequence[Job], folder: pathlib.Path, executor: Executor) -> bool:
    """Runs the unfinished jobs, and shows their progress.

    Returns:
      Whether all jobs are done. If not, other jobs of a SLURM array work on the rest.

    Raises:
      RunError: some runs failed. It names each with its last line of output. The others are done.
      KeyboardInterrupt, SystemExit: on Ctrl-C and SIGTERM, after the runs have saved.
    """
    array = os.environ.get("SLURM_ARRAY_JOB_ID") if executor.cluster == "local" else None
    call = f"array {array}" if array else f"{datetime.datetime.now():%Y-%m-%d %H:%M:%S} {os.getpid()}"
    gpus = visible_gpus() if executor.cluster == "local" else []
    workers = executor.workers or max(1, len(gpus))
    place = folder / "jobs"
    if executor.cluster == "local":
        place /= f"slurm_{os.environ['SLURM_JOB_ID']}" if array else platform.node()
    slots = [place / f"slot_{i}" for i in range(workers)]
    if taken := sum(map(is_claimed, slots)):
        print(
            f"--workers={workers}: {taken} of them are busy with another command; a larger number runs more at a time"
        )
    # SIGTERM raises too. So does SIGINT, even if a shell that started this in the background ignores it: otherwise the
    # workers would inherit that, and could not be stopped.
    ends = {signal.SIGINT: _end, signal.SIGTERM: _end}
    with signals(ends), progress_table(jobs) as show:
        for i in range(ROUNDS):
            for job in jobs if i else ():
                job.try_again(call)
            pending = [job for job in jobs if job.is_due(call)]
            if array:
                pending = [job for job in pending if not job.running]
            if not pending:
                break
            submitted: list[submitit.Job] = []
            try:
                for worker in _workers(pending, slots, executor, gpus, call):
                    submitted.append(_submit(worker, place, executor))
                at_work = _at_work(submitted, executor)
                while at_work() or _waits(pending, slots, call, elsewhere_too=not array):
                    show()
                    time.sleep(SECONDS_BETWEEN_LOOKS)
            except BaseException:
                _ignore(ends)
                if submitted:
                    print("stops after the runs have saved; a second Ctrl-C does not wait for that", file=sys.stderr)
                for job in submitted:
                    job.cancel(check=False)
                time.sleep(0.5)
                for signum, handler in ends.items():  # a second Ctrl-C does not wait
                    signal.signal(signum, handler)
                while executor.cluster == "local" and any(job.is_run_by(call) for job in pending):
                    time.sleep(0.1)  # the runs are saving
                raise
            finally:
                show()
    elsewhere = [job for job in jobs if array and job.running]
    failed = [job for job in jobs if not job.finished and job not in elsewhere]
    if failed:
        reasons = "; ".join(f"{job.name}: {_reason(job, folder)}" for job in failed)
        raise RunError(f"{len(failed)} of {len(jobs)} runs failed: {reasons}; the same command tries them again")
    return not elsewhere


def _end(signum: int, _: FrameType | None) -> NoReturn:
    """Handles SIGINT and SIGTERM: raises. Ignores both until all workers are told: `timeout` sends SIGTERM twice."""
    _ignore((signal.SIGINT, signal.SIGTERM))
    if signum == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + signum)


def _ignore(signums: Iterable[int]) -> None:
    for each in signums:
        signal.signal(each, signal.SIG_IGN)


def _waits(pending: Sequence[Job], slots: Sequence[pathlib.Path], call: str, elsewhere_too: bool) -> bool:
    """Whether another command holds a slot that these jobs need, or, `elsewhere_too`, works on one of them."""
    needed = any(map(is_claimed, slots)) and any(job.is_due(call) for job in pending)
    return needed or (elsewhere_too and any(job.running for job in pending))


def _at_work(submitted: Sequence[submitit.Job], executor: Executor) -> Callable[[], bool]:
    """A function that asks whether any of the workers is running, or will still start."""
    if executor.cluster == "local":
        return lambda: not all(job.done() for job in submitted)
    queue = slurm.Queue([job.job_id for job in submitted])
    return lambda: not queue.is_empty


def _reason(job: Job, folder: pathlib.Path) -> str:
    if not job.log.exists():
        return f"no worker started it (see {folder / 'jobs'})"
    return f"{job.failure() or 'was stopped from outside'} (see {job.log})"


def _workers(
    pending: Sequence[Job], slots: Sequence[pathlib.Path], executor: Executor, gpus: Sequence[str], call: str
) -> Iterator[Worker]:
    """A worker for every slot that has something to do, free slots first.

    A local one gets its own GPU, or its own share of the cores.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    share = executor.cluster == "local" and not gpus and len(slots) <= len(cores)
    on_one_gpu = -(-len(slots) // len(gpus)) if gpus else 0
    groups = tuple(seed_groups(pending, executor.vmap_seeds))
    free_first = sorted(enumerate(slots), key=lambda each: is_claimed(each[1]))
    for i, slot in free_first[: len(groups)]:
        environment: dict[str, str | None] = {}
        if executor.cluster == "local":  # submitit's workers see no GPU
            environment["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES")
        if gpus:
            environment["CUDA_VISIBLE_DEVICES"] = gpus[i % len(gpus)]
        if on_one_gpu > 1:
            memory = {"MEM_FRACTION": f"{0.9 / on_one_gpu:.3f}", "PREALLOCATE": "false"}  # other sweeps may need some
            own = {f"XLA_PYTHON_CLIENT_{name}": value for name, value in memory.items()}
            environment |= {name: value for name, value in own.items() if name not in os.environ}
        yield Worker(slot, call, groups, tuple(cores[i :: len(slots)]) if share else (), environment)


def _submit(worker: Worker, folder: pathlib.Path, executor: Executor) -> submitit.Job:
    """Starts a worker.

    Raises:
      InputError: submitit does not know one of the parameters.
    """
    submitter = submitit.AutoExecutor(folder, cluster=executor.cluster, slurm_max_num_timeout=1000)
    if executor.cluster == "local":
        submitter.update_parameters(timeout_min=10**6, stderr_to_stdout=True)
        with _stderr_to(folder / "controllers.txt"):
            return submitter.submit(worker)
    own = {name if name == "gpus_per_node" else f"slurm_{name}": value for name, value in executor.slurm.items()}
    if "slurm_setup" in own:
        own["slurm_setup"] = [own["slurm_setup"]]
    minutes = executor.timeout_minutes or 24 * 60
    try:
        submitter.update_parameters(
            **{"name": "posattn_jax", "timeout_min": minutes, "stderr_to_stdout": True, "gpus_per_node": 1} | own
        )
    except (NameError, TypeError, ValueError, AssertionError) as error:
        raise InputError(f"--slurm: {' '.join(str(error).split())}") from error
    return submitter.submit(worker)


@contextlib.contextmanager
def _stderr_to(path: pathlib.Path) -> Iterator[None]:
    """Redirects stderr of the processes started in the block: submitit's processes print tracebacks on Ctrl-C."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.flush()
    with path.open("a") as file:
        saved = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)


def visible_gpus() -> list[str]:
    """The NVIDIA GPUs of this machine. No library is started on them, since each is left to a run alone."""
    asked_for = os.environ.get("CUDA_VISIBLE_DEVICES")
    if asked_for is not None:
        return [gpu for gpu in asked_for.split(",") if gpu and gpu != "-1"]
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return []
    return [str(i) for i, line in enumerate(listed.splitlines()) if line.startswith("GPU ")]


@contextlib.contextmanager
def progress_table(jobs: Sequence[Job]) -> Iterator[Callable[[], None]]:
    """Yields a function that reads the files of all runs and shows a table: a row per treatment, a column per seed."""
    console, told, started = Console(stderr=True), {}, time.perf_counter()

    def tell() -> None:
        for job in jobs:
            cell = state(job)
            word = cell.split()[0]  # does not print every percent
            if told.get(job.name, "waiting") != word:
                told[job.name] = word
                console.print(f"{job.name}: {cell}", highlight=False, soft_wrap=True)

    if not console.is_terminal:
        yield tell
        return
    with Live(console=console, auto_refresh=False) as live:
        yield lambda: live.update(_table(jobs, time.perf_counter() - started), refresh=True)


def _table(jobs: Sequence[Job], seconds: float) -> Table:
    cells = {job.name: state(job) for job in jobs}
    done = sum(cell.startswith("done") for cell in cells.values())
    table = Table(title=f"{done} of {len(cells)} runs done, {seconds / 60:.0f} min", title_justify="left")
    seeds = list(dict.fromkeys(job.seed for job in jobs))
    for column in ("treatment", *map(str, seeds)):
        table.add_column(column, no_wrap=True)
    for treatment in dict.fromkeys(job.treatment for job in jobs):
        row = (cells.get(f"{treatment}/{seed}", "") for seed in seeds)
        table.add_row(treatment, *(cell.removeprefix("done ").removeprefix("running ") for cell in row))
    return table


def state(job: Job) -> str:
    """ "done .9805", "running 47%", "failed" or "waiting"."""
    if job.finished:
        score = job.score
        return "done" if score is None else f"done {score:.4f}"
    if job.running:
        return f"running {job.progress:.0%}"
    return "waiting" if job.failure() is None else "failed"
