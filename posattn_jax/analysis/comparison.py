"""A picture of the response and the cost of each method."""

import itertools

from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from posattn_jax.analysis.findings import outcomes
from posattn_jax.analysis.labels import label_points
from posattn_jax.analysis.runs import Runs
from posattn_jax.system.plot_style import panels, style


def by_cost(runs: Runs) -> Figure | None:
    """The response against the CPU time of an update, for treatments with costs, in a colour and marker per family."""
    found = [outcome for outcome in outcomes(runs) if outcome.treatment.name in runs.costs]
    if not found:
        return None
    figure, (axis,) = panels(1, 1, 8.0, 5.6)
    families = list(dict.fromkeys(outcome.treatment.family for outcome in found))
    points, intervals, (least, most) = [], [], runs.plan.bounds
    for outcome in found:
        name, family = outcome.treatment.name, outcome.treatment.family
        at, kind = 1e3 * runs.costs[name]["cpu_seconds"], style(families.index(family))
        points.append((at, outcome.sample.mean))
        axis.plot(*points[-1], label=family, **kind | {"linestyle": ""})
        if outcome.sample.n > 2:  # intervals of two runs reach far beyond
            ends = max(outcome.interval.low, least), min(outcome.interval.high, most)
            intervals.append(tuple((at, end) for end in ends))
            axis.vlines(at, *ends, color=kind["color"], alpha=0.4, zorder=1)
    front = pareto_front(points, runs.plan.lower_is_better)
    steps = [front[0]]
    for cost, response in front[1:]:
        steps += [(cost, steps[-1][1]), (cost, response)]
    axis.plot(*zip(*steps, strict=True), color="0.6", zorder=0, label="Pareto front: none is better and faster")
    axis.set(xscale="log", ylabel=runs.response_label, xlabel="CPU time of an update [ms]")
    axis.margins(0.08, 0.05)
    for set_formatter in (axis.xaxis.set_major_formatter, axis.xaxis.set_minor_formatter):
        set_formatter(LogFormatter(minor_thresholds=(2, 0.5)))  # 40, not 4 x 10^1
    axis.tick_params(axis="x", which="both", length=3)
    axis.grid()
    handles = dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))  # one per family
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3)
    names = [outcome.treatment.name for outcome in found]
    label_points(axis, points, names, [*intervals, *itertools.pairwise(steps)], fontsize=8)
    return figure


def pareto_front(points: list[tuple[float, float]], lower_is_better: bool) -> list[tuple[float, float]]:
    """The points (cost, response) for which no cheaper point is as good, the cheapest first."""
    sign, front = (1 if lower_is_better else -1), []
    for cost, response in sorted(points, key=lambda point: (point[0], sign * point[1])):
        if not front or sign * response < sign * front[-1][1]:
            front.append((cost, response))
    return front
