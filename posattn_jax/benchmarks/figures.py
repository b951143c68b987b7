"""Draws the figures of a benchmark from its results."""

import pathlib
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.ticker import LogLocator

from posattn_jax.benchmarks.table import PASSES
from posattn_jax.system.plot_style import panels, save, style

AXES = {"median_ms": "time (ms)", "temp_mib": "temporary memory (MiB)"}


def draw(results: dict[str, Any], folder: pathlib.Path) -> list[pathlib.Path]:
    """Draws time and memory against the span, and against the size of the grid if several grids share a span."""
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
    paths = {name: [folder / f"{name}.{suffix}" for suffix in ("png", "svg")] for name in drawings}
    for name, figure in drawings.items():
        save(figure, *paths[name])
    return [path for each in paths.values() for path in each]


def _grouped(points: list[dict], key: Callable[[dict], Any]) -> dict[Any, list[dict]]:
    groups = defaultdict(list)
    for point in points:
        groups[key(point)].append(point)
    return groups


def _against_span(results, shapes, quantity):
    """A column per shape and a row per pass: `quantity` of every implementation over the half-span.

    A span that differs between dimensions is placed at the half-span of a box with as many offsets.
    """
    passes = _passes(results)
    figure, grid = _grid(len(passes), len(shapes), sharey="row")
    for row, name in zip(grid, passes, strict=True):
        for axis, points in zip(row, shapes.values(), strict=True):
            halves = [point["half"] for point in points]
            xs = [(np.prod([2 * reach + 1 for reach in half]) ** (1 / len(half)) - 1) / 2 for half in halves]
            labels = [_joined(half if len(set(half)) > 1 else half[:1]) for half in halves]
            _curves(axis, results, points, name, quantity, xs, labels)
        row[0].set_ylabel(f"{PASSES[name]}\n{AXES[quantity]}")
    for axis, points in zip(grid[0], shapes.values(), strict=True):
        axis.set_title(f"{_joined(points[0]['grid_shape'])} positions")
    for axis in grid[-1]:
        axis.set_xlabel("half-span (positions)")
    _finish(figure, grid, results, f"{AXES[quantity].split(' (')[0].capitalize()} of attention over its span")
    return figure


def _against_size(results, half, points):
    """Time on the left and memory on the right, a row per pass: over the number of positions at one span."""
    passes = _passes(results)
    figure, grid = _grid(len(passes), len(AXES))
    for row, name in zip(grid, passes, strict=True):
        for axis, quantity in zip(row, AXES, strict=True):
            _curves(axis, results, points.values(), name, quantity, list(points), [f"{size:,}" for size in points])
            axis.set_ylabel(f"{PASSES[name]}\n{AXES[quantity]}")
    for axis in grid[-1]:
        axis.set_xlabel("size of the grid (positions)")
    grids = ", ".join(_joined(point["grid_shape"]) for point in points.values())
    _finish(
        figure, grid, results, f"Attention over the size of the grid ({grids}), half-span {_joined(half)} positions"
    )
    return figure


def _curves(axis, results, points, name, quantity, xs, labels):
    """One line per implementation, and the roofline for times; there is a gap where an implementation was skipped."""
    for i, implementation in enumerate(results["options"]["implementations"]):
        ys = [point["passes"][name]["implementations"][implementation].get(quantity, np.nan) for point in points]
        axis.plot(xs, ys, **style(i), markerfacecolor="white", label=implementation)
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
    axis.grid()


def _joined(sizes) -> str:
    return " x ".join(str(size) for size in sizes)


def _passes(results) -> list[str]:
    return list(results["points"][0]["passes"])


def _grid(rows: int, columns: int, **options):
    figure, axes = panels(rows * columns, columns, max(3.2, 5.4 / columns), 3.1, **options)
    return figure, np.array(axes).reshape(rows, columns)


def _finish(figure, grid, results, title):
    """The title with the sizes that all points share, and one legend for all panels."""
    options = results["options"]
    sizes = f"b = {options['batch']}, h = {options['heads']}, d = {options['head_dim']}, {options['dtype']}"
    figure.suptitle(f"{title}\n{sizes}, {results['device']['kind']}")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    columns = min(len(labels), int(figure.get_figwidth() / 1.5))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)
