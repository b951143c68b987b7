"""What the methods of a sweep are worth and what they cost: python -m posattn_jax.analysis.comparison RUNS --out=FOLDER

Reads the folder of a sweep, or of its report, with what `python -m posattn_jax.sweeps.costs` has measured. Writes
FOLDER/comparison.md, a table with the best first; comparison.json, the same in numbers; comparison.png and .svg,
quality against the CPU time of an update.
"""

import argparse
import dataclasses
import math
import pathlib
import sys
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from posattn_jax.analysis.findings import findings, outcomes
from posattn_jax.analysis.markdown_table import table
from posattn_jax.analysis.run_folders import read_runs
from posattn_jax.analysis.runs import Run, Runs
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import write_atomically, write_json


@dataclasses.dataclass(frozen=True)
class Row:
    """A treatment.

    Attributes:
      name, label: of the treatment.
      n, mean, low, high: of its runs' responses: how many, the mean and its 95% interval.
      parameters: of the model.
      seconds: of a run, evaluation and compilation included, the mean of its runs.
      peak_mib: the most memory that a run's process held, the largest of its runs; None: not known.
      operations, temp_mib, cpu_ms: of an update, as `sweeps.costs` has measured them; None: it has not.
    """

    name: str
    label: str
    n: int
    mean: float
    low: float
    high: float
    parameters: int
    seconds: float
    peak_mib: float | None
    operations: float | None
    temp_mib: float | None
    cpu_ms: float | None


def compare(runs: Runs) -> list[Row]:
    """The treatments with finished runs, the best first."""
    rows = []
    for outcome in outcomes(runs):
        name, interval = outcome.treatment.name, outcome.interval
        of_one, cost = runs.runs[name], runs.costs.get(name, {})
        peaks = [peak for peak in map(_peak, of_one) if peak is not None]
        rows.append(
            Row(
                name,
                outcome.treatment.label,
                outcome.sample.n,
                outcome.sample.mean,
                interval.low,
                interval.high,
                outcome.parameters,
                float(np.mean([run.summary["seconds"] for run in of_one])),
                max(peaks) / 2**20 if peaks else None,
                cost.get("operations"),
                cost["temp_bytes"] / 2**20 if cost else None,
                1e3 * cost["cpu_seconds"] if cost else None,
            )
        )
    sign = 1 if runs.plan.response == "loss" else -1
    return sorted(rows, key=lambda row: sign * row.mean)


def _peak(run: Run) -> int | None:
    return run.summary.get("peak_memory_bytes", {}).get("host")


def compose(runs: Runs, rows: list[Row]) -> str:
    """The comparison as Markdown."""
    header = ["method", "n", runs.plan.response, "95% interval", "parameters", "million operations", "CPU ms"]
    header += ["temporary MiB", "process MiB", "seconds a run"]
    lines = []
    for row in rows:
        interval = "-" if math.isnan(row.low) else f"{row.low:.4f} to {row.high:.4f}"
        line = [row.label, str(row.n), f"{row.mean:.4f}", interval, f"{row.parameters:,}"]
        line += [_cell(row.operations and row.operations / 1e6, ",.0f"), _cell(row.cpu_ms, ".1f")]
        line += [_cell(row.temp_mib, ".1f"), _cell(row.peak_mib, ".0f"), f"{row.seconds:.0f}"]
        lines.append(line)
    what = f"{runs.response_label[0].upper()}{runs.response_label[1:]}: means and 95% intervals of the mean (t)."
    costs = (
        "Operations, CPU time (of all cores) and temporary memory are those of one update, forward and backward. "
        "Operations count every trip of every loop of the formulas with all pairs laid out, not what a layout leaves "
        "out. Process memory and seconds are those of whole runs, compilation and evaluation included, on a machine "
        "that other work may have shared."
    )
    parts = [f"# {runs.plan.question}", f"{what} {costs}", table(header, lines)]
    tested = findings(runs)
    if tested:
        parts.append("\n".join(f"- **{each.hypothesis.claim}.** {each.verdict}" for each in tested))
    parts.append(f"![{runs.plan.response} against cost](comparison.svg)")
    if runs.left_out:
        parts += ["## Left out", "\n".join(f"- {line}" for line in runs.left_out)]
    return "\n\n".join(parts) + "\n"


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def draw(runs: Runs, rows: list[Row]) -> Figure:
    """Quality against the CPU time of an update; against the seconds of a run where that is not known."""
    updates = [row.cpu_ms for row in rows if row.cpu_ms is not None]
    measured = len(updates) == len(rows)
    costs = updates if measured else [row.seconds for row in rows]
    figure, axis = plt.subplots(figsize=(9, 6), layout="constrained")
    for row, cost in zip(rows, costs, strict=True):
        error = None if math.isnan(row.low) else [[row.mean - row.low], [row.high - row.mean]]
        axis.errorbar([cost], [row.mean], error, fmt="o", color="black", ecolor="0.75", markersize=4)
        axis.annotate(row.name, (cost, row.mean), xytext=(4, 3), textcoords="offset points", fontsize="x-small")
    means = [row.mean for row in rows]
    room = 0.1 * (max(means) - min(means)) or 0.05
    axis.set_ylim(min(means) - room, max(means) + room)  # intervals of two runs reach far beyond
    axis.set(xscale="log", ylabel=runs.response_label)
    axis.margins(x=0.12)  # the names beside the last points
    for set_formatter in (axis.xaxis.set_major_formatter, axis.xaxis.set_minor_formatter):
        set_formatter(LogFormatter(minor_thresholds=(2, 0.5)))  # 40, not 4 x 10^1
    axis.set_xlabel("CPU time of an update [ms]" if measured else "seconds of a run")
    axis.grid(alpha=0.3)
    return figure


def write(workdir: pathlib.Path, out: pathlib.Path) -> None:
    """Reads the runs and writes the comparison; raises as `read_runs`."""
    runs = read_runs(workdir)
    rows = compare(runs)
    figure = draw(runs, rows)
    for suffix in ("png", "svg"):
        write_atomically(out / f"comparison.{suffix}", lambda file, s=suffix: figure.savefig(file, format=s, dpi=150))
    plt.close(figure)
    text = compose(runs, rows)
    write_atomically(out / "comparison.md", lambda file: file.write(text.encode()))
    numbers: list[dict[str, Any]] = [
        {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in dataclasses.asdict(row).items()}
        for row in rows
    ]
    write_json(
        out / "comparison.json", {"response": runs.response_label, "methods": numbers, "left_out": runs.left_out}
    )
    print(f"{out / 'comparison.md'}: {len(rows)} methods, {len(runs.all)} runs")


def main() -> int:
    """Returns the exit code: 0 done, 2 wrong input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=pathlib.Path, help="the folder of a sweep")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="the folder to write to")
    arguments = parser.parse_args()
    try:
        write(arguments.runs, arguments.out)
    except InputError as error:
        print(f"posattn_jax: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
