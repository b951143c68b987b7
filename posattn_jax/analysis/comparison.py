"""A picture of the response and the cost of each method, with their names next to the points."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from posattn_jax.analysis.findings import outcomes
from posattn_jax.analysis.runs import Runs
from posattn_jax.axes import Float
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
        at, kind = 1e3 * runs.costs[name]["cpu_seconds"], style(families.index(family), linestyle="")
        points.append((at, outcome.sample.mean))
        axis.plot(*points[-1], label=family, **kind)
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


# Candidate places of a name: these distances from its point, at 16 angles. A line leads to names beyond the second.
DISTANCES = np.array([5, 9, 14, 20, 28, 38, 50, 65, 80])
ANGLES = np.arange(16) * np.pi / 8
AWAY = np.stack([np.cos(ANGLES), np.sin(ANGLES)], -1)
CROWD, POINT, LINE = 60, 7, 1.5  # radius in which points count as crowding; size of a point; width of a line

Place = tuple[float, float]  # x and y, in data


def label_points(
    axis: Axes, points: Sequence[Place], names: Sequence[str], lines: Sequence[tuple[Place, Place]], **font
) -> None:
    """Writes each name near its point, where it covers no other name, point or line if there is room.

    Names of the most crowded points are placed first, each at the best of a few places around its point. The result is
    deterministic.

    Args:
      axis: the axes, on which everything else is drawn already, since the scales must be known.
      points: the points to name.
      names: a name for each point.
      lines: the ends of lines to avoid, which are parallel to the axes.
      **font: the font of the names.
    """
    figure: Any = axis.get_figure()
    figure.draw_without_rendering()  # so that all positions are known
    unit = figure.dpi / 72  # pixels per typographic point, the unit of all lengths here
    at = axis.transData.transform(points) / unit
    ends = [np.sort(axis.transData.transform(each), axis=0) / unit for each in lines]
    taken = [np.stack([point - POINT / 2, point + POINT / 2]) for point in at]
    taken += [np.stack([low - LINE / 2, high + LINE / 2]) for low, high in ends]
    frame = axis.get_window_extent().get_points()[None] / unit
    crowd = [np.count_nonzero(np.hypot(*(at - point).T) < CROWD) for point in at]
    for i in map(int, np.argsort(crowd, kind="stable")[::-1]):
        text = axis.text(0, 0, names[i], **font)
        size = np.array(text.get_window_extent().size) / unit + (2, 0)
        text.remove()
        offsets = (AWAY * (DISTANCES[:, None, None] + size / 2)).reshape(-1, 2)
        boxes = at[i] + np.stack([offsets - size / 2, offsets + size / 2], 1)
        outside = size.prod() - _overlaps(boxes, frame)
        costs = _overlaps(boxes, np.stack(taken)) + 10 * outside + np.repeat(DISTANCES, len(AWAY))
        best = int(np.argmin(costs))
        taken.append(boxes[best])
        line = {"arrowstyle": "-", "color": "0.6", "linewidth": 0.7, "shrinkA": 0, "shrinkB": 3}
        own = {"xytext": tuple(offsets[best]), "textcoords": "offset points", "ha": "center", "va": "center"}
        own |= {"arrowprops": line if best >= 2 * len(AWAY) else None, "in_layout": False}
        axis.annotate(names[i], points[i], **own, **font)


def _overlaps(boxes: Float[np.ndarray, "n 2 2"], others: Float[np.ndarray, "m 2 2"]) -> Float[np.ndarray, "n"]:
    """The sum of the areas in which each box overlaps the others."""
    low = np.maximum(boxes[:, None, 0], others[:, 0])
    high = np.minimum(boxes[:, None, 1], others[:, 1])
    return np.prod(np.maximum(high - low, 0), -1).sum(-1)
