"""Pictures of one run, from its folder alone."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from posattn_jax.analysis.curves import Log, log_of, size_curves
from posattn_jax.analysis.kernel_figures import depthwise_kernels, fixed_kernels, positional_encodings
from posattn_jax.analysis.pictures import draw_span_sizes, panels, save
from posattn_jax.analysis.position_figures import energies_of_heads
from posattn_jax.analysis.span_pictures import on_grid
from posattn_jax.system.files import read_json, read_metrics


def draw_run(workdir: pathlib.Path) -> list[pathlib.Path]:
    """Draws learning curves, spans over epochs and on the grid, encodings and kernels, as far as the run has them."""
    log = log_of(read_metrics(workdir / "metrics.jsonl"))
    summary, config = read_json(workdir / "summary.json"), read_json(workdir / "config.json")
    with np.load(workdir / "positions.npz", allow_pickle=False) as file:
        positions = dict(file)
    grid = summary["grid_shape"]
    drawings = {
        "learning_curves": _learning_curves(log, summary["best"]),
        "span_over_epochs": _span_over_epochs(log, grid),
        "span_on_grid": on_grid(positions, summary),
        "positional_encodings": positional_encodings(positions, len(grid)),
        "fixed_kernels": fixed_kernels(positions, _kernel_shape(config["model"])),
        "depthwise_kernels": depthwise_kernels(positions),
    }
    for name, array in positions.items():
        mixer, _, what = name.rpartition("/")
        if what == "energies":
            title = f"Energies of positions: {mixer.replace('_', ' ')}"
            drawings[f"energies_{mixer}"] = energies_of_heads(array, title)
    drawn = {workdir / "figures" / f"{name}.png": figure for name, figure in drawings.items() if figure is not None}
    for path, figure in drawn.items():
        save(figure, path)
    return list(drawn)


def _kernel_shape(config: dict[str, Any]) -> Sequence[int]:
    """Of the fixed convolution of a model, whose config this is; () where there is none."""
    if config.get("kind") == "RelativeBias":
        return config["kernel_shape"]
    return next(filter(None, (_kernel_shape(each) for each in config.values() if isinstance(each, dict))), ())


def _learning_curves(log: Log, best: Mapping[str, Any]) -> Figure:
    """Every metric of training and validation over epochs, the best epoch marked."""
    names = [name for split, name in log if split == "validation"]
    figure, axes = panels(len(names), len(names), 5.0, 3.2)
    for axis, name in zip(axes, names, strict=True):
        for split, style, color in (("train", "--", "0.5"), ("validation", "-", "black")):
            points = np.array([*log.get((split, name), {}).values()]).reshape(-1, 2)  # none where it was not logged
            axis.plot(*points.T, style, color=color, label={"train": "training"}.get(split, split))
        axis.plot(best["epoch"], best[name], "o", color="black", label=f"best epoch: {best[name]:.4f}")
        axis.set(xlabel="epoch", ylabel=name)
        axis.legend(frameon=False)
    return figure


def _span_over_epochs(log: Log, grid: Sequence[int]) -> Figure | None:
    """The size of every layer's span, over epochs; the mean over heads where each has its own."""
    sizes = size_curves([log], len(grid))
    if not sizes:
        return None
    figure, axes = panels(len(grid), len(grid), 5.0, 3.2)
    for dim, axis in enumerate(axes):
        layers = [curve for name, curve in sizes.items() if name.endswith(f"/{dim}")]
        draw_span_sizes(axis, layers, grid[dim], f"dimension {dim + 1}")
    return figure
