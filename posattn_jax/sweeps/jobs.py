"""The runs of a sweep as jobs: the commands of each, and how far it is. What is known of a job lies in files."""

import dataclasses
import pathlib
import re
from collections.abc import Sequence
from typing import Any

from posattn_jax.system.files import is_evaluated, read_json, read_metrics
from posattn_jax.system.processes import is_claimed

# What a run exits with after it was asked to stop: it has saved, or had nothing to save yet.
STOPPED = (130, 143, -2, -15)


@dataclasses.dataclass(frozen=True)
class Job:
    """One run: a treatment with a seed.

    Attributes:
      treatment, seed: which.
      workdir: the run folder.
      log: what its commands print, between lines of `Worker`; whoever holds its lock is at work on the run.
      commands: the training and, where the sweep asks for it, the evaluation.
      command_of_seeds: the training of this treatment with several vmapped seeds, to be completed by --seeds.
      evaluate: the fields that are set for the evaluation.
      total_steps, total_epochs: the config's; the first decides where it is not 0.
      epoch: which one the sweep judges by, "best" or "last".
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
        """Whether the training has come to its end, and its best epoch was evaluated where that is asked for."""
        summary = read_json(self.workdir / "summary.json")
        if summary is None:
            return False
        final = summary["final"]
        total_steps = self.total_steps or self.total_epochs * final["step"] / final["epoch"]
        if final["step"] <= total_steps - 1:
            return False  # it was shorter
        return not self.evaluate or is_evaluated(read_json(self.workdir / "evaluation.json"), summary, self.evaluate)

    @property
    def running(self) -> bool:
        """Whether anyone is at work on it, this sweep or an earlier one."""
        return is_claimed(self.log)

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
        """Of the epoch that the sweep judges by, once the training is over."""
        summary = read_json(self.workdir / "summary.json")
        if summary is None:
            return None
        figures = summary["best" if self.epoch == "best" else "final"]
        return next(value for name, value in figures.items() if name not in ("step", "epoch", "loss"))

    def failure(self, call: str | None = None) -> str | None:
        """What the run said before it failed, the last time it ended; None where it did not, or not in this `call`."""
        if not self.log.exists():
            return None
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        notes = [i for i, line in enumerate(lines) if line.startswith("[sweep ")]
        ended = re.fullmatch(r"\[sweep (.*)\] exit code (-?\d+)", lines[notes[-1]]) if notes else None
        if ended is None or int(ended[2]) in (0, *STOPPED) or call not in (None, ended[1]):
            return None
        since = notes[-2] if len(notes) > 1 else 0
        said = [line for line in lines[since + 1 : notes[-1]] if line.strip()]
        if not said:
            return f"exit code {ended[2]}"
        return said[-1] if int(ended[2]) > 0 else f"exit code {ended[2]} after: {said[-1]}"

    def is_due(self, call: str) -> bool:
        """Whether something is left to do, and it has not failed in this call."""
        return not self.finished and self.failure(call) is None


def seed_groups(jobs: Sequence[Job], size: int) -> list[tuple[Job, ...]]:
    """Jobs in groups of one treatment, of at most so many seeds, in the order of the first of each."""
    by_treatment: dict[str, list[Job]] = {}
    for job in jobs:
        by_treatment.setdefault(job.treatment, []).append(job)
    groups = [tuple(own[i : i + size]) for own in by_treatment.values() for i in range(0, len(own), size)]
    return sorted(groups, key=lambda group: jobs.index(group[0]))
