"""Pictures of a sweep, from its run folders alone: every run is a point or counted in an interval.

Treatments are told apart by line, marker and place, not by colour.
"""

import math
import pathlib
from collections.abc import Callable

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from posattn_jax.analysis import statistics, translation_table
from posattn_jax.analysis.field_table import lines_of, value_of
from posattn_jax.analysis.figures import MARKERS, STYLES
from posattn_jax.analysis.position_figures import gating
from posattn_jax.analysis.run_folders import Run, Runs
from posattn_jax.analysis.span_pictures import draw_spans
from posattn_jax.system.files import write_atomically

SHADES = ("black", "0.55")
COLUMNS = 3


def draw_sweep(runs: Runs, folder: pathlib.Path) -> dict[str, str]:
    """Draws what the runs have, each as .svg and .png; returns the captions by name."""
    judged = f"{runs.judged_by.capitalize()} {runs.plan.response}"
    drawings: dict[str, tuple[str, Callable[[Runs], Figure | None]]] = {
        "box_plots": (
            f"{runs.response_label[0].upper()}{runs.response_label[1:]}: every point is a run; boxes are quartiles, "
            "whiskers reach to the extremes, a diamond is the mean.",
            _box_plots,
        ),
        "by_field": (
            f"{runs.response_label[0].upper()}{runs.response_label[1:]}: every point is a run, lines are means.",
            _by_field,
        ),
        "learning_curves": (
            f"{judged} while training: means, and 95% intervals of the mean (t).",
            _learning_curves,
        ),
        "spans": (
            "What the central pixel attends to after the best epoch, on an image: it fades into grey as the learned "
            "Gaussian falls, a line is the border of a span smaller than the image. Means over seeds.",
            draw_spans,
        ),
        "span_sizes": ("Learned spans with a mask, over epochs: means over seeds, and their range.", _span_sizes),
        "gating": ("What the gate is worth, by what queries and keys know: means over seeds.", _gating),
        "seconds": (
            f"{judged} while training, against seconds, evaluation included: means over seeds.",
            _against_seconds,
        ),
    }
    captions = {}
    for name, (caption, draw) in drawings.items():
        figure = draw(runs)
        if figure is None:
            continue
        for suffix in ("png", "svg"):
            write_atomically(
                folder / f"{name}.{suffix}", lambda file, s=suffix, f=figure: f.savefig(file, format=s, dpi=150)
            )
        plt.close(figure)
        captions[name] = caption
    return captions


def _gating(runs: Runs) -> Figure | None:
    """Figure 2 of Schmidt 2023."""
    pairs = translation_table.gating(runs)
    return None if pairs is None else gating(pairs, runs.plan.response)


def _box_plots(runs: Runs) -> Figure:
    """The paper's Figures 5 and 6."""
    names = list(runs.runs)
    figure, axis = plt.subplots(figsize=(7, 1.2 + 0.5 * len(names)), layout="constrained")
    responses = [runs.responses(name) for name in names]
    places = np.arange(len(names), 0, -1)
    axis.boxplot(
        responses,
        positions=places,
        orientation="horizontal",
        widths=0.6,
        whis=(0, 100),
        showmeans=True,
        meanprops={"marker": "D", "markerfacecolor": "white", "markeredgecolor": "black"},
        medianprops={"color": "black"},
    )
    for place, values in zip(places, responses, strict=True):
        spread = np.linspace(-0.15, 0.15, len(values)) if len(values) > 1 else np.zeros(1)
        axis.plot(values, place + spread, "o", color="0.35", markersize=4)
    axis.set_yticks(places, [runs.figure_label(name, runs.runs[name]) for name in names])
    axis.set_xlabel(runs.response_label)
    axis.grid(axis="x", alpha=0.3)
    return figure


def _curves(of_one: list[Run], split: str, names: list[str]) -> tuple[np.ndarray, np.ndarray, list[Run]]:
    """The mean of some metrics over the steps that all runs have: epochs, values [runs, steps], and the runs drawn."""
    drawn, series = [], []
    for run in of_one:
        metrics = [{step: (epoch, value) for step, epoch, value in run.series(split, name)} for name in names]
        if all(metrics):
            drawn.append(run)
            series.append(metrics)
    common = sorted(set.intersection(*(set(steps) for metrics in series for steps in metrics))) if series else []
    epochs = np.array([series[0][0][step][0] for step in common])
    values = np.array([np.mean([[steps[step][1] for step in common] for steps in m], axis=0) for m in series])
    return epochs, values, drawn if common else []


def _by_field(runs: Runs) -> Figure | None:
    """Figures 4 and 5b of Fan 2025: the response against the field that the plan names, and every run."""
    axis_field = runs.plan.axis
    if axis_field is None or any(isinstance(value_of(run, axis_field), str) for run in runs.all):
        return None
    figure, axis = plt.subplots(figsize=(6, 4), layout="constrained")
    for i, (label, names) in enumerate(lines_of(runs).items()):
        at = [value_of(runs.runs[name][0], axis_field) for name in names]
        responses = [runs.responses(name) for name in names]
        drawn = sorted({len(each) for each in responses})
        counts = f"n = {drawn[0]}" if len(drawn) == 1 else f"n = {drawn[0]} to {drawn[-1]}"
        style = {"color": SHADES[i % 2], "marker": MARKERS[i % 8]}
        axis.plot(at, [np.mean(each) for each in responses], STYLES[i % 4], label=f"{label} ({counts} each)", **style)
        for place, each in zip(at, responses, strict=True):
            axis.plot([place] * len(each), each, linestyle="", markersize=4, fillstyle="none", **style)
    axis.set(xlabel=axis_field, ylabel=runs.response_label)
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.legend(frameon=False)
    return figure


def _learning_curves(runs: Runs) -> Figure | None:
    """A panel for every hypothesis, with the treatment and its control; without any, all in one."""
    groups = [(h.treatment, h.control) for h in runs.plan.hypotheses if h.than is None and {*h.names} <= {*runs.runs}]
    groups = groups or [tuple(runs.runs)]
    curves = {name: _curves(of_one, "validation", [runs.plan.response]) for name, of_one in runs.runs.items()}
    groups = [tuple(name for name in names if len(curves[name][0]) > 1) for names in groups]  # one point is no curve
    groups = [names for names in groups if names]
    if not groups:
        return None
    figure, panels = _panels(len(groups))
    for axis, names in zip(panels, groups, strict=True):
        extremes = []
        for i, name in enumerate(names):
            epochs, values, drawn = curves[name]
            extremes += [values.min(), values.max()]
            style = {"color": SHADES[i % 2], "linestyle": STYLES[i % 4], "marker": MARKERS[i % 8]}
            every = _every(len(epochs), i)
            axis.plot(
                epochs, values.mean(0), label=runs.figure_label(name, drawn), markersize=4, markevery=every, **style
            )
            intervals = [statistics.mean_interval(statistics.sample(column.tolist())) for column in values.T]
            low, high = ([getattr(interval, end) for interval in intervals] for end in ("low", "high"))
            axis.fill_between(epochs, low, high, color=SHADES[i % 2], alpha=0.15, linewidth=0)
        room = 0.05 * (max(extremes) - min(extremes)) or 0.05
        axis.set(xlabel="epoch", ylabel=f"{runs.judged_by} {runs.plan.response}")
        axis.set_ylim(min(extremes) - room, max(extremes) + room)  # intervals of two runs reach far beyond
        axis.legend(frameon=False, fontsize="x-small")
    return figure


def _span_sizes(runs: Runs) -> Figure | None:
    """A panel for every treatment with a span and dimension, a line for every layer."""
    panels_of = []
    for name, of_one in runs.runs.items():
        if not (of_one[0].summary["threshold"] or 0) > 0:
            continue  # no span, or all of the grid
        grid = of_one[0].summary["grid_shape"]
        names = {row["name"] for run in of_one for row in run.metrics if "/size_" in row["name"]}
        panels_of += [(name, grid, dim, names) for dim in range(len(grid)) if names]
    if not panels_of:
        return None
    figure, panels = _panels(len(panels_of))
    for axis, (name, grid, dim, names) in zip(panels, panels_of, strict=True):
        layers = sorted({metric.split("/")[0] for metric in names}, key=lambda layer: int(layer.split("_")[1]))
        for i, layer in enumerate(layers):
            # One size a dimension, or one a head and dimension: then their mean.
            own = [m for m in names if m.startswith(f"{layer}/") and int(m.split("_")[-1]) % len(grid) == dim]
            epochs, values, drawn = _curves(runs.runs[name], "span", own)
            axis.plot(epochs, values.mean(0), color="black", linestyle=STYLES[i % 4], label=f"layer {i + 1}")
            axis.fill_between(epochs, values.min(0), values.max(0), color="black", alpha=0.12, linewidth=0)
        whole = 2 * grid[dim] - 1
        axis.axhline(whole, color="0.7", linewidth=1)
        across = {1: ("",), 2: (", rows", ", columns")}.get(len(grid), tuple(f", dimension {i + 1}" for i in range(3)))
        axis.set_title(runs.figure_label(name, drawn) + across[dim], fontsize="small")
        axis.set(xlabel="epoch", ylabel=f"span (of {whole} offsets)", ylim=(0, 1.1 * whole))
        axis.legend(frameon=False, fontsize="x-small")
    return figure


def _against_seconds(runs: Runs) -> Figure | None:
    """Of more treatments than styles tell apart, those of the hypotheses."""
    shown = list(runs.runs)
    if len(shown) > len(STYLES) * len(SHADES):
        named = {name for h in runs.plan.hypotheses for name in (h.treatment, h.control)}
        shown = [name for name in shown if name in named] or shown
    figure, axis = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for i, name in enumerate(shown):
        of_one = [run for run in runs.runs[name] if run.series("speed", "seconds")]
        epochs, values, drawn = _curves(of_one, "validation", [runs.plan.response])
        at, seconds, _ = _curves(drawn, "speed", ["seconds"])
        both = np.isin(epochs, at)
        if both.sum() < 2:
            continue
        means = seconds.mean(0)[np.searchsorted(at, epochs[both])]
        style = {"linestyle": STYLES[i % 4], "marker": MARKERS[i % 8], "color": SHADES[i // 4 % 2], "markersize": 5}
        every = _every(int(both.sum()), i)
        axis.plot(means, values.mean(0)[both], label=runs.figure_label(name, drawn), markevery=every, **style)
    if not axis.lines:
        plt.close(figure)
        return None
    axis.set(xlabel="seconds", ylabel=f"{runs.judged_by} {runs.plan.response}")
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, fontsize="small")
    return figure


def _every(count: int, curve: int) -> tuple[int, int]:
    """Where to mark a curve: about eight points, those of two curves apart."""
    apart = max(1, count // 8)
    return curve % apart, apart


def _panels(count: int):
    """A figure with so many panels, a few in a row."""
    columns = min(count, COLUMNS)
    rows = math.ceil(count / columns)
    figure, axes = plt.subplots(rows, columns, figsize=(4.2 * columns, 3.2 * rows), layout="constrained", squeeze=False)
    for axis in axes.flat[count:]:
        axis.set_axis_off()
    return figure, axes.flat[:count]
