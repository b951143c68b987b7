"""What a submitted job does: it takes one run after the other that nobody else is at work on."""

import contextlib
import dataclasses
import os
import pathlib
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from types import FrameType
from typing import IO, Any

from submitit.helpers import DelayedSubmission

from posattn_jax.sweeps import slurm
from posattn_jax.sweeps.jobs import Job, claim


@dataclasses.dataclass
class Worker:
    """Called by submitit, in a process of its own.

    Attributes:
      slot: a file; who holds its lock is the worker of this number. A run that outlives its worker keeps it too, so
        there are never more runs at a time than slots.
      call: names the call of the sweep: a run that failed in it is not tried again.
      jobs: all runs of the sweep.
      cores: the CPU cores to stay on; empty: any.
      environment: of the runs, where it differs from this process's; None takes a variable out of it.
    """

    slot: pathlib.Path
    call: str
    jobs: tuple[Job, ...]
    cores: tuple[int, ...] = ()
    environment: dict[str, str | None] = dataclasses.field(default_factory=dict)
    process: subprocess.Popen | None = None

    def __call__(self) -> None:
        if self.cores and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, self.cores)
        if os.environ.get("SUBMITIT_EXECUTOR") == "slurm":
            self._heed_sigterm(signal.getsignal(signal.SIGUSR2))
        with claim(self.slot) as slot:
            if slot is None:
                return
            for job in self.jobs:
                with claim(job.log) as log:
                    if log is not None and not job.finished and job.failure(self.call) is None:
                        self._run(job, log, slot)

    def _run(self, job: Job, log: IO[str], slot: IO[str]) -> None:
        environment = os.environ | self.environment
        for command in job.commands:
            log.write(f"[sweep {self.call}] {shlex.join(command)}\n")
            log.flush()
            with _warning_ignored():
                self.process = subprocess.Popen(
                    command,
                    env={name: value for name, value in environment.items() if value is not None},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C reaches it once, through `_stop`
                    pass_fds=(slot.fileno(),),
                )
            try:
                exit_code = self.process.wait()
            except BaseException:
                self._stop()
                raise
            finally:
                log.write(f"[sweep {self.call}] exit code {self.process.poll()}\n")
                log.flush()
            if exit_code != 0:
                return

    def _stop(self) -> None:
        """Lets the run save, and end. From a signal handler too, while `_run` waits: Popen's own wait would block."""
        if self.process is None or self.process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.process.pid, signal.SIGTERM)
            os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)

    def _heed_sigterm(self, requeue: Any) -> None:
        """SIGTERM tells of a preemption, or that the job was cancelled; `requeue` is submitit's answer to SIGUSR2."""

        def terminated(signum: int, frame: FrameType | None) -> None:
            self._stop()
            if slurm.is_running(os.environ["SLURM_JOB_ID"]):
                requeue(signum, frame)
            sys.exit(128 + signum)

        signal.signal(signal.SIGTERM, terminated)

    def checkpoint(self) -> DelayedSubmission:
        """Called by submitit before a time limit or a preemption: the job is submitted anew."""
        self._stop()
        return DelayedSubmission(dataclasses.replace(self, process=None))


@contextlib.contextmanager
def _warning_ignored() -> Iterator[None]:
    """By processes that are started meanwhile: SLURM warns all of a job, and `Worker.checkpoint` tells the run."""
    previous = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR2, previous)
