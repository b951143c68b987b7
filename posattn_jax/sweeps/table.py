"""Shows the progress of a sweep: a live table on a terminal, else a line for each change."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.live import Live
from rich.table import Table

from posattn_jax.sweeps.jobs import Job


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
