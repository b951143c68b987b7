"""The runs of a sweep as jobs: the commands of each, and its progress. All state of a job is in files."""

import dataclasses
import pathlib
import re
from collections.abc import Sequence
from typing import Any

from posattn_jax.system.files import is_evaluated, read_json, read_metrics
from posattn_jax.system.processes import claim, is_claimed

# The exit codes of a run that was asked to stop. It has saved, or had nothing to save yet.
STOPPED = (130, 143, -2, -15)
# What a run prints to which its device gave no memory, or no access. Other programs may leave the device soon.
DEVICE_IS_FULL = re.compile("RESOURCE_EXHAUSTED|OUT_OF_MEMORY|no supported devices found")


@dataclasses.dataclass(frozen=True)
class Job:
    """One run: a treatment with a seed.

    Attributes:
      treatment, seed: the treatment and the seed.
      workdir: the run folder.
      log: the file with the output of its commands, between lines of `Worker`. The process that has the lock of this
        file works on the run.
      commands: the command of the training and, if the sweep asks for it, that of the evaluation.
      total_steps, total_epochs: those of the config. The first is used unless it is 0.
      command_of_seeds: the command that trains several vmapped seeds of this treatment. --seeds must be added.
      evaluate: the fields that are set for the evaluation.
      epoch: the epoch whose score the sweep compares, "best" or "last".
    """

    treatment: str
    seed: int
    workdir: pathlib.Path
    log: pathlib.Path
    commands: tuple[tuple[str, ...], ...]
    total_steps: int
    total_epochs: float
    command_of_seeds: tuple[str, ...] = ()
    evaluate: dict[str, Any] = dataclasses.field(default_factory=dict)
    epoch: str = "best"

    @property
    def name(self) -> str:
        return f"{self.treatment}/{self.seed}"

    @property
    def finished(self) -> bool:
        """Whether the training is finished and, if the sweep asks for an evaluation, the best epoch was evaluated."""
        return is_finished(self.workdir, self.total_steps, self.total_epochs, self.evaluate)

    @property
    def running(self) -> bool:
        """Whether a process works on it, of this call of the sweep or of another."""
        return is_claimed(self.log)

    def is_run_by(self, call: str) -> bool:
        """Whether a process works on it, of this `call` of the sweep."""
        if not self.running:
            return False
        notes = re.findall(r"^\[sweep (.*?)\] ", self.log.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
        return notes[-1:] == [call]

    @property
    def progress(self) -> float:
        """The share of the training that is done."""
        path = self.workdir / "metrics.jsonl"
        rows = read_metrics(path) if path.exists() else []
        if not rows:
            return 0.0
        last = rows[-1]
        done = last["step"] / self.total_steps if self.total_steps else last["epoch"] / self.total_epochs
        return min(1.0, done)

    @property
    def score(self) -> float | None:
        """The score of the epoch that the sweep compares; None before the training is finished."""
        summary = read_json(self.workdir / "summary.json")
        if summary is None:
            return None
        figures = summary["best" if self.epoch == "best" else "final"]
        return next(value for name, value in figures.items() if name not in ("step", "epoch", "loss"))

    def failure(self, call: str | None = None) -> str | None:
        """The last line of the run if it failed when it last ended; None if it did not fail, or not in this `call`."""
        failed = self._failed(call)
        if failed is None:
            return None
        exit_code, said = failed
        if not said:
            return f"exit code {exit_code}"
        return said[-1] if exit_code > 0 else f"exit code {exit_code} after: {said[-1]}"

    def _failed(self, call: str | None) -> tuple[int, list[str]] | None:
        """The exit code and the lines of the run, if it failed: see `failure`."""
        if not self.log.exists():
            return None
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        notes = [i for i, line in enumerate(lines) if line.startswith("[sweep ")]
        ended = re.fullmatch(r"\[sweep (.*)\] exit code (-?\d+)", lines[notes[-1]]) if notes else None
        if ended is None or int(ended[2]) in (0, *STOPPED) or call not in (None, ended[1]):
            return None
        since = notes[-2] if len(notes) > 1 else 0
        return int(ended[2]), [line for line in lines[since + 1 : notes[-1]] if line.strip()]

    def try_again(self, call: str) -> None:
        """Makes the run due again if it failed in this `call` because its device was full or taken."""
        failed = self._failed(call)
        if failed is None or not any(map(DEVICE_IS_FULL.search, failed[1])):
            return
        with claim(self.log) as log:
            if log is not None:
                log.write(f"[sweep {call}] the device was full or taken: it is tried again\n")

    def is_due(self, call: str) -> bool:
        """Whether the job is not finished, and has not failed in this call."""
        return not self.finished and self.failure(call) is None


def is_finished(workdir: pathlib.Path, total_steps: int, total_epochs: float, evaluate: dict[str, Any]) -> bool:
    """Whether the run in a folder was trained this long and, if `evaluate` has fields, its best epoch evaluated."""
    summary = read_json(workdir / "summary.json")
    if summary is None:
        return False
    final = summary["final"]
    if final["step"] <= (total_steps or total_epochs * final["step"] / final["epoch"]) - 1:
        return False  # the finished run was shorter
    return not evaluate or is_evaluated(read_json(workdir / "evaluation.json"), summary, evaluate)


def seed_groups(jobs: Sequence[Job], size: int) -> list[tuple[Job, ...]]:
    """Groups of jobs with the same treatment, each of at most `size` seeds, ordered by their first job."""
    by_treatment: dict[str, list[Job]] = {}
    for job in jobs:
        by_treatment.setdefault(job.treatment, []).append(job)
    groups = [tuple(own[i : i + size]) for own in by_treatment.values() for i in range(0, len(own), size)]
    return sorted(groups, key=lambda group: jobs.index(group[0]))
