"""Draws the pictures of one run from its folder."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from posattn_jax.analysis.curve_pictures import draw_span_sizes, over_epochs
from posattn_jax.analysis.position_figures import energies_of_heads
from posattn_jax.analysis.runs.curves import Log, log_of, size_curves
from posattn_jax.analysis.span_pictures import on_grid
from posattn_jax.system.files import read_json, read_metrics
from posattn_jax.system.plot_style import SIGNED, panels, save, style, whole_ticks

Positions = Mapping[str, np.ndarray]


def draw_run(workdir: pathlib.Path) -> list[pathlib.Path]:
    """Draws the run's learning curves and, if it has them, spans over epochs and on the grid, encodings and kernels."""
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
    """The shape of the kernel of a fixed convolution in a model's config; () if there is none."""
    if config.get("kind") == "RelativeBias":
        return config["kernel_shape"]
    return next(filter(None, (_kernel_shape(each) for each in config.values() if isinstance(each, dict))), ())


def _learning_curves(log: Log, best: Mapping[str, Any]) -> Figure:
    """Every metric of training and validation over epochs. The best epoch is marked."""
    names = [name for split, name in log if split == "validation"]
    figure, axes = panels(len(names), len(names), 5.0, 3.2)
    for axis, name in zip(axes, names, strict=True):
        for i, (split, label) in enumerate((("validation", "validation"), ("train", "training"))):
            points = np.array([*log.get((split, name), {}).values()]).reshape(-1, 2)  # empty if it was not logged
            axis.plot(*points.T, label=f"{label} {name}", **style(i, marker=""))
        axis.plot(best["epoch"], best[name], "o", color=style(0)["color"], label=f"best epoch: {name} {best[name]:.4f}")
        axis.set_ylabel(name)
        axis.legend()
        over_epochs(axis)
    return figure


def _span_over_epochs(log: Log, grid: Sequence[int]) -> Figure | None:
    """The size of every layer's span over epochs. It is a mean over heads with own spans."""
    sizes = size_curves([log], len(grid))
    if not sizes:
        return None
    figure, axes = panels(len(grid), len(grid), 5.0, 3.2)
    for dim, axis in enumerate(axes):
        layers = [curve for name, curve in sizes.items() if name.endswith(f"/{dim}")]
        draw_span_sizes(axis, layers, grid, dim, "")
    return figure


def positional_encodings(positions: Positions, num_dims: int) -> Figure | None:
    """The features of every layer's relative encoding over all offsets; on grids, only some features."""
    encodings = [array.reshape(*array.shape[:num_dims], -1) for array in _of_layers(positions, "relative_encoding")]
    return _draw(encodings, "feature", "encoding", quantile=0.995, most=6)


def fixed_kernels(positions: Positions, kernel_shape: Sequence[int]) -> Figure | None:
    """Chang 2021, Figure 2: beta of every layer and head."""
    return _draw([_within(array, kernel_shape) for array in _of_layers(positions, "relative_bias")], "head", "beta")


def depthwise_kernels(positions: Positions) -> Figure | None:
    """Chang 2021, Figure 3: the kernels of every layer's channels, for sequences only.

    Channels are sorted by the weight of the next token minus that of the previous token.
    """
    kernels = _of_layers(positions, "depthwise_kernel")
    if not kernels or kernels[0].ndim != 2 or len(kernels[0]) < 3:
        return None
    middle = len(kernels[0]) // 2
    ordered = [kernel[:, np.argsort(kernel[middle + 1] - kernel[middle - 1])] for kernel in kernels]
    return _draw(ordered, "channel, sorted", "weight", quantile=0.995)


def _of_layers(positions: Positions, name: str) -> list[np.ndarray]:
    return [array for key, array in positions.items() if key.endswith(f"/{name}")]


def _within(array: np.ndarray, kernel_shape: Sequence[int]) -> np.ndarray:
    """The part of an array [*R, h] over all offsets that is within the kernel."""
    reaches = [min(k // 2, size // 2) for size, k in zip(array.shape[:-1], kernel_shape, strict=True)]
    return array[tuple(slice(size // 2 - r, size // 2 + r + 1) for size, r in zip(array.shape, reaches, strict=False))]


def _draw(
    kernels: Sequence[np.ndarray], what: str, label: str, quantile: float = 1.0, most: int | None = None
) -> Figure | None:
    """Draws arrays [*K, n] of layers over their offsets, in one colour scale, which ends at `quantile` of their values.

    Sequences have a panel per layer, with n rows. Grids have a picture for each of n, or for `most` of them. Volumes
    are shown by their central plane.
    """
    if not kernels:
        return None
    limit = max(float(np.quantile(np.abs(kernel), quantile)) for kernel in kernels) or 1.0
    colours = {"cmap": SIGNED, "vmin": -limit, "vmax": limit}
    num = kernels[0].shape[-1]
    if kernels[0].ndim == 2:
        figure, axes = panels(len(kernels), 4, 2.8, 2.4)
        for layer, (axis, kernel) in enumerate(zip(axes, kernels, strict=True), start=1):
            reach = len(kernel) / 2
            axis.imshow(kernel.T, aspect="auto", extent=(-reach, reach, num + 0.5, 0.5), **colours)
            axis.set_title(f"layer {layer}")
            whole_ticks(axis.xaxis)
            whole_ticks(axis.yaxis)
        figure.supxlabel("key - query (positions)")
        figure.supylabel(what)
    else:
        shown = np.linspace(0, num - 1, min(num, most or num)).astype(int)
        shape = kernels[0].shape[-3] / kernels[0].shape[-2]
        figure, axes = panels(
            len(kernels) * len(shown), len(shown), 1.5, 1.4 * min(shape, 3) + 0.2, layout="compressed"
        )
        for i, axis in enumerate(axes):
            layer, which = i // len(shown), shown[i % len(shown)]
            kernel = kernels[layer]
            plane = kernel[kernel.shape[0] // 2] if kernel.ndim == 4 else kernel
            height, width = np.array(plane.shape[:2]) / 2
            axis.imshow(plane[..., which], extent=(-width, width, height, -height), **colours)
            whole_ticks(axis.xaxis, 4)
            whole_ticks(axis.yaxis, 4)
            axis.label_outer()
            axis.set_title(f"{what} {which + 1}" if layer == 0 else "")
            axis.set_ylabel(f"layer {layer + 1}" if i % len(shown) == 0 else "")
        figure.supxlabel("columns, key - query")
        figure.supylabel("rows, key - query")
    figure.colorbar(axes[-1].images[-1], ax=axes, label=label)
    return figure
