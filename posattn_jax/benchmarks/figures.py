"""Pictures of a benchmark, from its results alone."""

import pathlib
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import LogLocator

from posattn_jax.benchmarks.table import PASSES

# Told apart by marker and line as well as by colour (Okabe and Ito's).
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
LINES = ("-", "--", ":", "-.", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)), (0, (1, 1)))
MARKERS = "osD^vX*P"

AXES = {"median_ms": "time (ms)", "temp_mib": "temporary memory (MiB)"}


def draw(results: dict[str, Any], folder: pathlib.Path) -> list[pathlib.Path]:
    """Draws time and memory against the span, and against the size of the grid where grids share a span."""
    shapes = _grouped(results["points"], lambda point: point["shape"])
    drawings = {
        "time": _against_span(results, shapes, "median_ms"),
        "memory": _against_span(results, shapes, "temp_mib"),
    }
    windows = _grouped(results["points"], lambda point: tuple(point["half"]))
    for half, points in windows.items():
        sizes = {point["num_positions"]: point for point in sorted(points, key=lambda point: point["num_positions"])}
        if len(sizes) > 1:
            name = f"size_{len(half)}d_half_{'x'.join(str(reach) for reach in half)}"
            drawings[name] = _against_size(results, half, sizes)
    paths = []
    for name, figure in drawings.items():
        for suffix in ("png", "svg"):
            paths.append(folder / f"{name}.{suffix}")
            figure.savefig(paths[-1], dpi=150)
        plt.close(figure)
    return paths


def _grouped(points: list[dict], key: Callable[[dict], Any]) -> dict[Any, list[dict]]:
    groups = defaultdict(list)
    for point in points:
        groups[key(point)].append(point)
    return groups


def _against_span(results, shapes, quantity):
    """A column a shape, a row a pass: `quantity` of every layout over the half-span.

    A span that differs between dimensions is placed at the half-span of a box with as many offsets.
    """
    passes = _passes(results)
    figure, panels = _panels(len(passes), len(shapes), sharey="row")
    for row, name in zip(panels, passes, strict=True):
        for axis, points in zip(row, shapes.values(), strict=True):
            halves = [point["half"] for point in points]
            xs = [(np.prod([2 * reach + 1 for reach in half]) ** (1 / len(half)) - 1) / 2 for half in halves]
            labels = [_joined(half if len(set(half)) > 1 else half[:1]) for half in halves]
            _curves(axis, results, points, name, quantity, xs, labels)
        row[0].set_ylabel(f"{PASSES[name]}\n{AXES[quantity]}")
    for axis, points in zip(panels[0], shapes.values(), strict=True):
        axis.set_title(f"{_joined(points[0]['grid_shape'])} positions", fontsize="medium")
    for axis in panels[-1]:
        axis.set_xlabel("half-span (positions)")
    _finish(figure, panels, results, f"{AXES[quantity].split(' (')[0].capitalize()} of attention over its span")
    return figure


def _against_size(results, half, points):
    """Time on the left, memory on the right, a row a pass, over the number of positions at one span."""
    passes = _passes(results)
    figure, panels = _panels(len(passes), len(AXES))
    for row, name in zip(panels, passes, strict=True):
        for axis, quantity in zip(row, AXES, strict=True):
            _curves(axis, results, points.values(), name, quantity, list(points), [f"{size:,}" for size in points])
            axis.set_ylabel(f"{PASSES[name]}\n{AXES[quantity]}")
    for axis in panels[-1]:
        axis.set_xlabel("size of the grid (positions)")
    grids = ", ".join(_joined(point["grid_shape"]) for point in points.values())
    _finish(
        figure, panels, results, f"Attention over the size of the grid ({grids}), half-span {_joined(half)} positions"
    )
    return figure


def _curves(axis, results, points, name, quantity, xs, labels):
    """One line a layout, and the roofline of times; a gap where a layout was skipped."""
    for i, layout in enumerate(results["options"]["layouts"]):
        ys = [point["passes"][name]["layouts"][layout].get(quantity, np.nan) for point in points]
        style = {"color": COLOURS[i % 7], "linestyle": LINES[i % 7], "marker": MARKERS[i % 8]}
        axis.plot(xs, ys, **style, markersize=5, linewidth=1.4, markerfacecolor="white", label=layout)
    if quantity == "median_ms":
        roofline = [point["passes"][name]["roofline_ms"] for point in points]
        axis.plot(xs, roofline, color="0.6", linewidth=3, zorder=1, label="roofline")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    apart = [i == 0 or x > 1.1 * xs[i - 1] for i, x in enumerate(xs)]
    axis.set_xticks(xs, [label if shown else "" for label, shown in zip(labels, apart, strict=True)])
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=20))
    axis.yaxis.set_major_formatter("{x:g}")
    axis.minorticks_off()
    axis.set_axisbelow(True)
    axis.grid(color="0.9", linewidth=0.6)


def _joined(sizes) -> str:
    return " x ".join(str(size) for size in sizes)


def _passes(results) -> list[str]:
    return list(results["points"][0]["passes"])


def _panels(rows: int, columns: int, **options):
    size = (max(3.4 * columns, 6.4), 3.1 * rows + 0.9)
    return plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False, **options)


def _finish(figure, panels, results, title):
    """The title with the sizes that all points share, and one legend for all panels."""
    options = results["options"]
    sizes = f"b = {options['batch']}, h = {options['heads']}, d = {options['head_dim']}, {options['dtype']}"
    figure.suptitle(f"{title}\n{sizes}, {results['device']['kind']}", fontsize="medium")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    columns = min(len(labels), int(figure.get_figwidth() / 1.5))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
