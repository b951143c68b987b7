"""The work of a submitted job: one after the other, it takes the runs, or vmapped seeds, that nobody else works on."""

import contextlib
import dataclasses
import os
import pathlib
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType
from typing import IO, Any

from submitit.helpers import DelayedSubmission

from posattn_jax.sweeps import slurm
from posattn_jax.sweeps.jobs import STOPPED, Job
from posattn_jax.system.processes import child_environment, claim, signals


@dataclasses.dataclass
class Worker:
    """Trains runs. submitit calls it in its own process.

    Attributes:
      slot: a file. The process that has its lock is the worker of this slot. A run that outlives its worker keeps the
        lock, so that there are never more runs at a time than slots.
      call: the name of this call of the sweep. A run that failed in this call is not tried again in it.
      groups: all runs of the sweep, in groups. The unfinished runs of a group are vmapped.
      cores: the CPU cores to use; empty: any.
      environment: the environment variables in which the runs differ from this process; None removes a variable.
      process: the command that is running.
    """

    slot: pathlib.Path
    call: str
    groups: tuple[tuple[Job, ...], ...]
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
            for group in self.groups:
                with contextlib.ExitStack() as stack:
                    claims = [(job, stack.enter_context(claim(job.log))) for job in group]
                    self._run([(job, log) for job, log in claims if log is not None and job.is_due(self.call)], slot)

    def _run(self, claimed: Sequence[tuple[Job, IO[str]]], slot: IO[str]) -> None:
        """Trains jobs whose logs are locked, first vmapped. What fails, or is left to do, then runs one by one."""
        trained = False
        if len(claimed) > 1:
            seeds = ",".join(str(job.seed) for job, _ in claimed)
            command = (*claimed[0][0].command_of_seeds, f"--seeds={seeds}")
            exit_code = self._call(command, [log for _, log in claimed], slot)
            if exit_code in STOPPED:
                return
            trained = exit_code == 0
        for job, log in claimed:
            for command in job.commands[int(trained) :]:
                if self._call(command, [log], slot) != 0:
                    break

    def _call(self, command: Sequence[str], logs: Sequence[IO[str]], slot: IO[str]) -> int:
        """Runs a command, and writes it to the logs; its output goes to the first. Returns its exit code."""
        environment = child_environment() | self.environment
        for log in logs:
            log.write(f"[sweep {self.call}] {shlex.join(command)}\n")
            if log is not logs[0]:
                log.write(f"what it printed is in {logs[0].name}\n")
            log.flush()
        # SLURM signals all processes of a job, but it is `checkpoint` that stops the run.
        with signals({signal.SIGUSR2: signal.SIG_IGN}):
            self.process = subprocess.Popen(
                command,
                env={name: value for name, value in environment.items() if value is not None},
                stdin=subprocess.DEVNULL,
                stdout=logs[0],
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches it once, through `_stop`
                pass_fds=(slot.fileno(), *(log.fileno() for log in logs[1:])),
            )
        try:
            return self.process.wait()
        except BaseException:
            self._stop()
            raise
        finally:
            for log in logs:
                log.write(f"[sweep {self.call}] exit code {self.process.poll()}\n")
                log.flush()

    def _stop(self) -> None:
        """Makes the run save and end. Also called by a signal handler during `_run`, where Popen.wait would block."""
        if self.process is None or self.process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.process.pid, signal.SIGTERM)
            os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)

    def _heed_sigterm(self, requeue: Any) -> None:
        """Handles SIGTERM, of a preemption or a cancelled job. `requeue` is submitit's handler of SIGUSR2."""

        def terminated(signum: int, frame: FrameType | None) -> None:
            self._stop()
            if slurm.is_running(os.environ["SLURM_JOB_ID"]):
                requeue(signum, frame)
            sys.exit(128 + signum)

        signal.signal(signal.SIGTERM, terminated)

    def checkpoint(self) -> DelayedSubmission:
        """Stops the run, and returns the job to submit again. submitit calls it before a time limit or preemption."""
        self._stop()
        return DelayedSubmission(dataclasses.replace(self, process=None))
