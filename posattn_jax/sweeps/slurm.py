"""What SLURM's own queue says of jobs. submitit asks the accounts, which many clusters have not, every ten minutes."""

import subprocess
import time
from collections.abc import Iterable

SECONDS_BETWEEN_QUESTIONS = 20.0


class Queue:
    """Some jobs, until each of them is over."""

    def __init__(self, job_ids: Iterable[str]):
        self._job_ids = set(job_ids)
        self._asked = float("-inf")

    @property
    def is_empty(self) -> bool:
        """Whether all are over, as of the last time that SLURM was asked and answered."""
        if self._job_ids and time.monotonic() - self._asked > SECONDS_BETWEEN_QUESTIONS:
            self._asked = time.monotonic()
            answer = _squeue("--me", "--format=%A")
            if answer is not None:
                self._job_ids.intersection_update(answer)
        return not self._job_ids


def is_running(job_id: str) -> bool:
    """Whether a job runs, and is not about to end or to be queued again; False where SLURM does not say."""
    return _squeue(f"--jobs={job_id}", "--format=%T") == ["RUNNING"]


def _squeue(*arguments: str) -> list[str] | None:
    """The words of its answer; None where there is none, as while the controller starts anew."""
    try:
        answer = subprocess.run(["squeue", "--noheader", *arguments], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.split() if answer.returncode == 0 else None
