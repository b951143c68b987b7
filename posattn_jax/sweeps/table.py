"""How far a sweep is: a table on a terminal, kept up to date; elsewhere a line for what changes."""

import time
from collections.abc import Sequence

from rich.console import Console
from rich.live import Live
from rich.table import Table

from posattn_jax.sweeps.jobs import Job


class ProgressTable:
    """Treatments down, seeds across; a context in which `show` may be called at any time."""

    def __init__(self, jobs: Sequence[Job]):
        self._jobs = jobs
        self._console = Console(stderr=True)
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None
        self._told: dict[str, str] = {}
        self._started = time.perf_counter()

    def __enter__(self) -> "ProgressTable":
        if self._live is not None:
            self._live.__enter__()
        return self

    def __exit__(self, *error) -> None:
        if self._live is not None:
            self._live.__exit__(*error)

    def show(self) -> None:
        """Looks at the files of every run."""
        cells = {job.name: state(job) for job in self._jobs}
        if self._live is not None:
            self._live.update(self._table(cells), refresh=True)
            return
        for name, cell in cells.items():
            word = cell.split()[0]  # not every percent
            if self._told.get(name, "waiting") != word:
                self._told[name] = word
                self._console.print(f"{name}: {cell}", highlight=False, soft_wrap=True)

    def _table(self, cells: dict[str, str]) -> Table:
        done = sum(cell.startswith("done") for cell in cells.values())
        minutes = (time.perf_counter() - self._started) / 60
        table = Table(title=f"{done} of {len(cells)} runs done, {minutes:.0f} min", title_justify="left")
        seeds = list(dict.fromkeys(job.seed for job in self._jobs))
        table.add_column("treatment", no_wrap=True)
        for seed in seeds:
            table.add_column(str(seed), no_wrap=True)
        for treatment in dict.fromkeys(job.treatment for job in self._jobs):
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
