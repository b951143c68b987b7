"""What the methods of a sweep are worth and what they cost, as `sweeps.costs` has measured: a table and a picture."""

import math
from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from posattn_jax.analysis.findings import Outcome, outcomes
from posattn_jax.analysis.markdown_text import interval_text, plain, table
from posattn_jax.analysis.runs import Runs

EXPLANATION = (
    "Operations, CPU time (of all cores) and temporary memory are those of one update, forward and backward. "
    "Operations count every step of every loop of the formulas with all pairs laid out, not what a layout leaves out. "
    "Process memory and seconds are those of whole runs, compilation and evaluation included, on a machine that other "
    "work may have shared."
)


def compose(runs: Runs, found: Sequence[Outcome]) -> str | None:
    """The table, the best first, where any costs were measured; "-" is what is not known."""
    if not runs.costs:
        return None
    header = ["method", "n", runs.plan.response, "95% interval", "parameters", "million operations", "CPU ms"]
    header += ["temporary MiB", "process MiB", "seconds a run"]
    sign = 1 if runs.plan.response == "loss" else -1
    lines = []
    for outcome in sorted(found, key=lambda outcome: sign * outcome.sample.mean):
        name, summaries = outcome.treatment.name, [run.summary for run in runs.runs[outcome.treatment.name]]
        line = [plain(outcome.treatment.label), str(outcome.sample.n), f"{outcome.sample.mean:.4f}"]
        line += [interval_text(outcome.interval, "{:.4f}"), f"{outcome.parameters:,}"]
        cost = runs.costs.get(name)
        line += _cost_cells(cost) if cost else ["-", "-", "-"]
        peaks = [peak for summary in summaries if (peak := summary.get("peak_memory_bytes", {}).get("host"))]
        line += [f"{max(peaks) / 2**20:.0f}" if peaks else "-"]
        lines.append([*line, f"{np.mean([summary['seconds'] for summary in summaries]):.0f}"])
    return f"{runs.response_title}: means and 95% intervals of the mean (t). {EXPLANATION}\n\n{table(header, lines)}"


def _cost_cells(cost: dict[str, float]) -> list[str]:
    operations, milliseconds, mib = cost["operations"] / 1e6, 1e3 * cost["cpu_seconds"], cost["temp_bytes"] / 2**20
    return [f"{operations:,.0f}", f"{milliseconds:.1f}", f"{mib:.1f}"]


def draw(runs: Runs) -> Figure | None:
    """The response against the CPU time of an update, of the treatments with costs."""
    found = [outcome for outcome in outcomes(runs) if outcome.treatment.name in runs.costs]
    if not found:
        return None
    figure, axis = plt.subplots(figsize=(9, 6), layout="constrained")
    for outcome in found:
        name, mean, interval = outcome.treatment.name, outcome.sample.mean, outcome.interval
        milliseconds = 1e3 * runs.costs[name]["cpu_seconds"]
        error = None if math.isnan(interval.low) else [[mean - interval.low], [interval.high - mean]]
        axis.errorbar([milliseconds], [mean], error, fmt="o", color="black", ecolor="0.75", markersize=4)
        axis.annotate(name, (milliseconds, mean), xytext=(4, 3), textcoords="offset points", fontsize="x-small")
    means = [outcome.sample.mean for outcome in found]
    room = 0.1 * (max(means) - min(means)) or 0.05
    axis.set_ylim(min(means) - room, max(means) + room)  # intervals of two runs reach far beyond
    axis.set(xscale="log", ylabel=runs.response_label, xlabel="CPU time of an update [ms]")
    axis.margins(x=0.12)  # the names beside the last points
    for set_formatter in (axis.xaxis.set_major_formatter, axis.xaxis.set_minor_formatter):
        set_formatter(LogFormatter(minor_thresholds=(2, 0.5)))  # 40, not 4 x 10^1
    axis.grid(alpha=0.3)
    return figure
