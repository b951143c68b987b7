"""What a submitted job does: it takes one run, or vmapped seeds, after the other that nobody else is at work on."""

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
from posattn_jax.system.processes import claim, signals


@dataclasses.dataclass
class Worker:
    """Called by submitit, in a process of its own.

    Attributes:
      slot: a file; who holds its lock is the worker of this number. A run that outlives its worker keeps it too, so
        there are never more runs at a time than slots.
      call: names the call of the sweep: a run that failed in it is not tried again.
      groups: all runs of the sweep; of a group those with something left to do are vmapped.
      cores: the CPU cores to stay on; empty: any.
      environment: of the runs, where it differs from this process's; None takes a variable out of it.
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
        """Trains jobs whose logs are locked: vmapped, and then one by one what that failed at or left to do."""
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
        """Runs a command, and notes it in the logs; what it prints is in the first. Returns its exit code."""
        environment = os.environ | self.environment
        for log in logs:
            log.write(f"[sweep {self.call}] {shlex.join(command)}\n")
            if log is not logs[0]:
                log.write(f"what it printed is in {logs[0].name}\n")
            log.flush()
        # SLURM warns all of a job, and `checkpoint` tells the run.
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
