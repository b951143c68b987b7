"""Pictures of one run, from its folder alone."""

import json
import math
import pathlib
from collections.abc import Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")  # for every picture of this package

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Rectangle

from posattn_jax.analysis.curves import Log, log_of, size_curves
from posattn_jax.analysis.kernel_figures import depthwise_kernels, fixed_kernels
from posattn_jax.analysis.position_figures import energies_of_heads
from posattn_jax.system.files import read_metrics

STYLES = ("-", "--", ":", "-.")
MARKERS = "osD^vX*P"


def draw_run(workdir: pathlib.Path) -> list[pathlib.Path]:
    """Draws learning curves, spans over epochs and on the grid, encodings and kernels, as far as the run has them."""
    log = log_of(read_metrics(workdir / "metrics.jsonl"))
    summary = json.loads((workdir / "summary.json").read_text(encoding="utf-8"))
    config = json.loads((workdir / "config.json").read_text(encoding="utf-8"))
    with np.load(workdir / "positions.npz", allow_pickle=False) as file:
        positions = dict(file)
    folder = workdir / "figures"
    folder.mkdir(exist_ok=True)
    drawings = {
        "learning_curves": _learning_curves(log, summary),
        "span_over_epochs": _span_over_epochs(log, summary),
        "span_on_grid": _span_on_grid(positions, summary),
        "positional_encodings": _positional_encodings(positions, summary),
        "fixed_kernels": fixed_kernels(positions, _kernel_shape(config["model"])),
        "depthwise_kernels": depthwise_kernels(positions),
    }
    for name, array in positions.items():
        mixer, _, what = name.rpartition("/")
        if what == "energies":
            drawings[f"energies_{mixer}"] = energies_of_heads(
                array, f"Energies of positions: {mixer.replace('_', ' ')}"
            )
    paths = []
    for name, figure in drawings.items():
        if figure is not None:
            path = folder / f"{name}.png"
            figure.savefig(path, dpi=150)
            plt.close(figure)
            paths.append(path)
    return paths


def _kernel_shape(config: dict[str, Any]) -> Sequence[int]:
    """Of the fixed convolution of a model, whose config this is; () where there is none."""
    if config.get("kind") == "RelativeBias":
        return config["kernel_shape"]
    return next(filter(None, (_kernel_shape(each) for each in config.values() if isinstance(each, dict))), ())


def _points(log: Log, split: str, name: str) -> np.ndarray:
    """Epochs and values [2, n]; n is 0 where it was not logged."""
    return np.array([*log.get((split, name), {}).values()]).reshape(-1, 2).T


def _learning_curves(log: Log, summary):
    """Every metric of training and validation over epochs, the best epoch marked."""
    names = [name for split, name in log if split == "validation"]
    figure, panels = plt.subplots(1, len(names), figsize=(5 * len(names), 3.6), layout="constrained")
    for axis, name in zip(np.atleast_1d(panels), names, strict=True):
        axis.plot(*_points(log, "train", name), STYLES[1], color="0.5", label="training")
        axis.plot(*_points(log, "validation", name), STYLES[0], color="black", label="validation")
        best = summary["best"]
        axis.plot(best["epoch"], best[name], "o", color="black", label=f"best epoch: {best[name]:.4f}")
        axis.set(xlabel="epoch", ylabel=name)
        axis.legend(frameon=False)
    return figure


def _span_over_epochs(log: Log, summary):
    """The size of every layer's span in positions, over epochs; the mean over heads where each has its own."""
    grid = summary["grid_shape"]
    sizes = size_curves([log], len(grid))
    if not sizes:
        return None
    figure, panels = plt.subplots(1, len(grid), figsize=(5 * len(grid), 3.6), layout="constrained", squeeze=False)
    for dim, axis in enumerate(panels[0]):
        for i, curve in enumerate(curve for name, curve in sizes.items() if name.endswith(f"/{dim}")):
            style = {"marker": MARKERS[i % 8], "markevery": 0.2, "label": f"layer {i + 1}"}
            axis.plot(curve.at, curve.mean, STYLES[i % 4], **style)
        axis.axhline(2 * grid[dim] - 1, color="0.7", linewidth=1)
        axis.annotate(
            "whole grid", (0, 2 * grid[dim] - 1), xycoords=("axes fraction", "data"), va="bottom", color="0.4"
        )
        axis.set(xlabel="epoch", ylabel="span (positions)", title=f"dimension {dim + 1}", ylim=(0, 2.2 * grid[dim]))
    panels[0, -1].legend(frameon=False, fontsize="small")
    return figure


def mean_factor(sigma: np.ndarray, num_dims: int) -> np.ndarray:
    """The Cholesky factor [p, p] of a span, the mean of its heads: of sigma [p] or [h p] the diagonal one."""
    sigma = np.tril(sigma) if sigma.ndim == 3 else np.abs(np.atleast_2d(sigma))[..., None] * np.eye(num_dims)
    return np.where(np.eye(num_dims, dtype=bool), np.abs(sigma), sigma).mean(0)


def _gaussian(factor: np.ndarray, grid: list[int]) -> np.ndarray:
    """G = exp(-1/2 |L^-1 x|^2) at every offset of a grid, of a volume in the plane of the query: [*R]."""
    axes = [np.arange(1 - size, size) / max(size - 1, 1) for size in grid]
    if len(grid) == 3:
        axes[0] = np.zeros(1)
    x = np.stack(np.meshgrid(*axes, indexing="ij"))
    z = np.linalg.solve(factor, x.reshape(len(grid), -1))
    return np.exp(-0.5 * np.square(z).sum(0)).reshape([len(axis) for axis in axes[-2:]])


def half_spans(deviations: np.ndarray, summary) -> np.ndarray:
    """The reach of a span on each side, in positions."""
    reach = np.asarray(summary["grid_shape"]) - 1
    if not summary["threshold"] or summary["threshold"] <= 0:
        return reach
    return np.minimum(np.ceil(math.sqrt(-2 * math.log(summary["threshold"])) * deviations * reach), reach)


def _span_on_grid(positions, summary):
    """The Gaussian of every layer around a query, and the box of what it attends to (the paper's Figures 3 and 7)."""
    sigmas = {name.split("/")[0]: array for name, array in positions.items() if name.endswith("/sigma")}
    if not sigmas:
        return None
    grid = summary["grid_shape"]
    size = (2.8 * len(sigmas) + 1.6, 3.6)
    figure, panels = plt.subplots(1, len(sigmas), figsize=size, layout="compressed", sharey=True, squeeze=False)
    image = None
    for i, (axis, sigma) in enumerate(zip(panels[0], sigmas.values(), strict=True)):
        factor = mean_factor(sigma, len(grid))
        deviations = np.linalg.norm(factor, axis=1)
        half = half_spans(deviations, summary)
        axis.set_title("layer {}\nσ = {}".format(i + 1, ", ".join(f"{s:.2f}" for s in deviations)), fontsize="medium")
        gaussian = _gaussian(factor, grid)
        if len(grid) == 1:
            axis.plot(np.arange(1 - grid[0], grid[0]), gaussian, color="black")
            axis.axvspan(-half[0], half[0], color="0.9")
            axis.set(xlabel="key - query (positions)", ylim=(0, 1.05))
            continue
        height, width = grid[-2] - 0.5, grid[-1] - 0.5
        extent = (-width, width, height, -height)
        image = axis.imshow(gaussian, cmap="gray", vmin=0, vmax=1, extent=extent)
        _outline(axis, half[-1] + 0.5, half[-2] + 0.5, color="tab:orange", linewidth=2)
        _outline(axis, grid[-1] / 2, grid[-2] / 2, color="tab:cyan", linestyle=":")
        axis.plot(0, 0, "+", color="tab:red")
        axis.set(xlabel="columns from the query")
    panels[0, 0].set_ylabel("Gaussian" if len(grid) == 1 else "rows from the query")
    if image is not None:
        figure.colorbar(image, ax=panels, label="Gaussian", shrink=0.7)
        figure.supxlabel("solid box: the span    dotted: the image around its central pixel", fontsize="small")
    return figure


def _outline(axis, half_width, half_height, **style):
    """A box centred on the query."""
    axis.add_patch(Rectangle((-half_width, -half_height), 2 * half_width, 2 * half_height, fill=False, **style))


def _positional_encodings(positions, summary):
    """The first features of every layer's relative encoding over all offsets; the centre plane of a volume."""
    encodings = [array for name, array in positions.items() if name.endswith("/relative_encoding")]
    if not encodings:
        return None
    grid = summary["grid_shape"]
    if len(grid) == 1:
        figure, panels = plt.subplots(
            1, len(encodings), figsize=(2.8 * len(encodings), 3), layout="constrained", squeeze=False
        )
        for i, (axis, encoding) in enumerate(zip(panels[0], encodings, strict=True)):
            features = encoding.reshape(len(encoding), -1)
            axis.imshow(features, aspect="auto", cmap="RdBu", extent=(0, features.shape[1], grid[0] - 1, 1 - grid[0]))
            axis.set(title=f"layer {i + 1}", xlabel="feature")
        panels[0, 0].set_ylabel("key - query (positions)")
        return figure
    shown = 6
    figure, panels = plt.subplots(
        len(encodings), shown, figsize=(1.5 * shown, 1.6 * len(encodings)), layout="constrained", squeeze=False
    )
    height, width = grid[-2] - 0.5, grid[-1] - 0.5
    for i, (row, encoding) in enumerate(zip(panels, encodings, strict=True)):
        plane = encoding[grid[0] - 1] if len(grid) == 3 else encoding
        plane = plane.reshape(*plane.shape[:2], -1)
        features = np.linspace(0, plane.shape[-1] - 1, shown).astype(int)
        for axis, feature in zip(row, features, strict=True):
            limit = np.abs(plane[..., feature]).max() or 1.0
            axis.imshow(
                plane[..., feature], cmap="RdBu", vmin=-limit, vmax=limit, extent=(-width, width, height, -height)
            )
            axis.set_title(f"feature {feature}", fontsize="small")
            axis.tick_params(labelsize="x-small")
        row[0].set_ylabel(f"layer {i + 1}\nrows", fontsize="small")
    for axis in panels[-1]:
        axis.set_xlabel("columns", fontsize="small")
    figure.suptitle("Relative encoding by key - query offset (positions)", fontsize="medium")
    return figure
