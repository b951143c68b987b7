"""Asks SLURM's queue about jobs. submitit asks SLURM's accounting every ten minutes, but many clusters have none."""

import subprocess
import time
from collections.abc import Iterable

SECONDS_BETWEEN_QUESTIONS = 20.0


class Queue:
    """Tracks jobs until all of them have ended."""

    def __init__(self, job_ids: Iterable[str]):
        self._job_ids = set(job_ids)
        self._asked = float("-inf")

    @property
    def is_empty(self) -> bool:
        """Whether all jobs have ended, by SLURM's last answer."""
        if self._job_ids and time.monotonic() - self._asked > SECONDS_BETWEEN_QUESTIONS:
            self._asked = time.monotonic()
            answer = _squeue("--me", "--format=%A")
            if answer is not None:
                self._job_ids.intersection_update(answer)
        return not self._job_ids


def is_running(job_id: str) -> bool:
    """Whether a job is running, and is neither ending nor queued again; False if SLURM does not answer."""
    return _squeue(f"--jobs={job_id}", "--format=%T") == ["RUNNING"]


def _squeue(*arguments: str) -> list[str] | None:
    """The words of squeue's answer; None if there is no answer, for example while the controller restarts."""
    try:
        answer = subprocess.run(["squeue", "--noheader", *arguments], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.split() if answer.returncode == 0 else None
