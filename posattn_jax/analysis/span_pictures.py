"""Pictures of learned spans: those of a run on its grid, and of a sweep on an image (Alfons 2022, Figures 3 and 7)."""

import math
import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from posattn_jax.analysis.curve_pictures import DIMENSIONS
from posattn_jax.analysis.runs import Runs
from posattn_jax.analysis.runs.curves import Spans
from posattn_jax.analysis.savings import what_spans_saved
from posattn_jax.system.plot_style import BLACK, BLUE, FROM_ZERO, VERMILLION, panels, style, whole_ticks

FLAT = 99  # a Gaussian of this width or more is 1 on the whole grid


def factors(sigma: np.ndarray, num_dims: int) -> np.ndarray:
    """The Cholesky factor [p p] of each head's span, or of the shared span. It is diagonal for sigma [p] or [h p]."""
    sigma = np.tril(sigma) if sigma.ndim == 3 else np.abs(np.atleast_2d(sigma))[..., None] * np.eye(num_dims)
    return np.where(np.eye(num_dims, dtype=bool), np.abs(sigma), sigma)


def mean_factor(sigma: np.ndarray, num_dims: int) -> np.ndarray:
    """The mean [p p] of the heads' factors."""
    return factors(sigma, num_dims).mean(0)


def _half_spans(factor: np.ndarray, summary: Mapping[str, Any]) -> np.ndarray:
    """The half-spans [p], in positions."""
    reach = np.asarray(summary["grid_shape"]) - 1
    if not summary["threshold"] or summary["threshold"] <= 0:
        return reach
    deviations = np.linalg.norm(factor, axis=1)
    return np.minimum(np.ceil(math.sqrt(-2 * math.log(summary["threshold"])) * deviations * reach), reach)


def _gaussian(factor: np.ndarray, offsets: np.ndarray, summary: Mapping[str, Any]) -> np.ndarray:
    """G = exp(-1/2 |L^-1 x|^2) at offsets in positions, or of a span that is a box 1 inside: [... p] -> [...]."""
    if _is_box(summary):
        return np.all(np.abs(offsets) <= _half_spans(factor, summary), axis=-1).astype(float)
    x = offsets / np.maximum(np.array(summary["grid_shape"]) - 1, 1)
    z = np.linalg.solve(factor, x.reshape(-1, len(factor)).T)
    return np.exp(-0.5 * np.square(z).sum(0)).reshape(offsets.shape[:-1])


def _is_box(summary: Mapping[str, Any]) -> bool:
    """Whether the span has no Gaussian. Summaries of earlier versions do not say so: theirs is 1 inside."""
    return summary.get("span_mode") == "box"


def _window(log_window: np.ndarray) -> np.ndarray:
    """The mean over heads of a window m, from ln m [*R h]; of a volume that in the plane of the query, [1 R R]."""
    mean = np.exp(log_window).mean(-1)
    return mean[len(mean) // 2 :][:1] if mean.ndim == 3 else mean


def _title(layer: int, factors: np.ndarray, summary: Mapping[str, Any]) -> str:
    """The layer, and the mean over heads of sigma or, of a span without a Gaussian, of the reach in positions."""
    num_dims = len(summary["grid_shape"])
    names = ("",) if num_dims == 1 else DIMENSIONS[num_dims]
    if _is_box(summary):
        symbol, values = "reach", np.mean([_half_spans(factor, summary) for factor in factors], axis=0)
        told = [f"{half:.1f}".removesuffix(".0") for half in values]
    else:
        symbol, values = "σ", np.linalg.norm(np.mean(factors, axis=0), axis=1)
        told = [f"{s:.2f}" if s < FLAT else f"above {FLAT}" for s in values]  # a window is a Gaussian that is flat
    each = (f"{name} {value}".strip() for name, value in zip(names, told, strict=True))
    unbroken = ", ".join(words.replace(" ", "\N{NO-BREAK SPACE}") for words in each)
    return f"layer {layer}\n" + textwrap.fill(f"{symbol}: {unbroken}", 28)


def on_grid(positions: Mapping[str, np.ndarray], summary: Mapping[str, Any]) -> Figure | None:
    """The Gaussian or window of every layer around a query, and the boxes of its heads, after and before training.

    A volume is shown in the plane of the query. The title says what the spans saved.
    """
    sigmas = [array for name, array in positions.items() if name.endswith("/sigma")]
    windows = [array for name, array in positions.items() if name.endswith("/log_window")] or [None] * len(sigmas)
    if not sigmas:
        return None
    what = "window" if _is_box(summary) else "Gaussian"
    grid, image = summary["grid_shape"], None
    shape = grid[-2] / grid[-1] if len(grid) > 1 else 0.8
    figure, axes = panels(len(sigmas), 6, 2.8, 2.6 * min(shape, 3) + 0.7, layout="compressed")
    ranges = [np.arange(1 - size, size) for size in grid]
    if len(grid) == 3:
        ranges[0] = np.zeros(1)
    offsets = np.stack(np.meshgrid(*ranges, indexing="ij"), -1)
    figure.suptitle("\n".join([*what_spans_saved(summary), ""]))
    for i, (axis, sigma, window) in enumerate(zip(axes, sigmas, windows, strict=True), start=1):
        heads, factor = factors(sigma, len(grid)), mean_factor(sigma, len(grid))
        gaussian = _gaussian(factor, offsets, summary) if window is None else _window(window)
        axis.set_title(_title(i, heads, summary))
        whole_ticks(axis.xaxis)
        if len(grid) == 1:
            (half,) = _half_spans(factor, summary)
            axis.axvspan(-half, half, color="0.9")
            axis.plot(ranges[0], gaussian, color=BLUE)
            if not _is_box(summary):
                axis.set_title(f"{_title(i, heads, summary)}\nspan: {half:.0f} on each side")
            axis.set(xlabel="key - query (positions)", ylabel=what, ylim=(0, 1.05))
            continue
        whole_ticks(axis.yaxis)
        height, width = grid[-2] - 0.5, grid[-1] - 0.5
        plane = gaussian.reshape(gaussian.shape[-2:])
        image = axis.imshow(plane, cmap=FROM_ZERO, vmin=0, vmax=1, extent=(-width, width, height, -height))
        own = {"clip_on": False, "zorder": 3}  # so that a box as large as the panel is visible
        boxes = {tuple(_half_spans(each, summary)[-2:]) for each in heads}
        for rows, columns in boxes:
            _outline(axis, columns + 0.5, rows + 0.5, color=BLUE, linewidth=1.8, label="the spans of the heads", **own)
        if summary["initial_sigma"] is not None:
            rows, columns = _half_spans(np.diag(np.broadcast_to(summary["initial_sigma"], len(grid))), summary)[-2:]
            first = {"color": VERMILLION, "linestyle": "--", "linewidth": 2, "label": "at first"}
            _outline(axis, columns + 0.5, rows + 0.5, **first, **own)
        around = "the image around its central pixel"
        _outline(axis, grid[-1] / 2, grid[-2] / 2, color=BLACK, linestyle=":", linewidth=1.5, label=around, **own)
        axis.plot(0, 0, "+", color=BLACK, markersize=8)
        axis.set(xlabel="columns, key - query", ylabel="rows, key - query")
        axis.label_outer()
    if image is not None:
        figure.colorbar(image, ax=axes, label=what, shrink=0.7)
        handles, labels = axes[0].get_legend_handles_labels()
        legend = dict(zip(labels, handles, strict=True))  # one entry per label
        figure.legend(legend.values(), legend.keys(), loc="outside lower center", ncols=3)
    return figure


def _outline(axis: Axes, half_width: float, half_height: float, **style) -> None:
    """A box centred on the query."""
    axis.add_patch(Rectangle((-half_width, -half_height), 2 * half_width, 2 * half_height, fill=False, **style))


def draw_spans(runs: Runs) -> Figure | None:
    """A row for every treatment with a span, a column for every layer; None if no treatment has spans and an image."""
    if not runs.spans:
        return None
    columns = max(len(spans.factors) for spans in runs.spans.values())
    figure, axes = panels(len(runs.spans) * columns, columns, 2.3, 2.6)
    for axis in axes:
        axis.set(xticks=[], yticks=[], frame_on=False)
    for row, (name, spans) in enumerate(runs.spans.items()):
        own = axes[row * columns : (row + 1) * columns]
        for axis, layer in zip(own, spans.factors, strict=False):
            _draw_layer(axis, spans, layer, runs.runs[name][0].summary)
        own[0].set_ylabel(textwrap.fill(runs.figure_label(name, spans.num_runs), 22))
    return figure


def _draw_layer(axis: Axes, spans: Spans, layer: str, summary: Mapping[str, Any]) -> None:
    image, factor = spans.image, spans.factors[layer]
    gaussian, inside = on_image(factor, summary, image.shape[:2])
    seen = 0.5 + (image - 0.5) * (gaussian * inside)[..., None]
    axis.imshow(seen.squeeze(), cmap="gray", vmin=0, vmax=1)
    if not inside.all():
        edges = np.kron(inside, np.ones((8, 8)))  # the border follows the pixels
        extent = (-0.5, image.shape[1] - 0.5, image.shape[0] - 0.5, -0.5)
        axis.contour(edges[::-1], levels=[0.5], colors="white", linewidths=3, extent=extent)
        axis.contour(edges[::-1], levels=[0.5], colors="black", linewidths=1.5, extent=extent)
    axis.plot(image.shape[1] // 2, image.shape[0] // 2, "+", color="white", markeredgewidth=3)
    axis.plot(image.shape[1] // 2, image.shape[0] // 2, "+", color="black")
    axis.set_title(_title(int(layer.split("_")[1]) + 1, factor[None], summary))


def draw_profiles(runs: Runs) -> Figure | None:
    """Spans through the central pixel along its row and column, a line for every treatment; None for fewer than two.

    A line is G, or 1 for a span without a Gaussian, and 0 outside of the span's box.
    """
    if len(runs.spans) < 2:
        return None
    columns = max(len(spans.factors) for spans in runs.spans.values())
    figure, axes = panels(2 * columns, columns, 2.3, 2.1, sharey=True)
    for i, (name, spans) in enumerate(runs.spans.items()):
        shape = spans.image.shape[:2]
        for layer, (key, factor) in enumerate(spans.factors.items()):
            gaussian, inside = on_image(factor, runs.runs[name][0].summary, shape)
            seen = np.where(inside, gaussian, 0)
            for axis, line in ((axes[layer], seen[shape[0] // 2]), (axes[columns + layer], seen[:, shape[1] // 2])):
                at = np.arange(len(line)) - len(line) // 2
                axis.plot(at, line, label=runs.figure_label(name, spans.num_runs), **style(i))
            axes[layer].set(title=f"layer {int(key.split('_')[1]) + 1}", xlabel="columns from the query")
            axes[columns + layer].set_xlabel("rows from the query")
    for axis in axes:
        axis.set_ylim(0, 1.05)
        axis.grid()
        whole_ticks(axis.xaxis)
    axes[0].set_ylabel("span along a row")
    axes[columns].set_ylabel("span along a column")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure


def on_image(
    factor: np.ndarray, summary: Mapping[str, Any], image_shape: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """G around the central pixel, and whether a pixel is inside the span: two arrays [height, width].

    In one dimension, the pixels are a row-major sequence, so a span covers whole rows. `factor` is the result of
    `mean_factor`.
    """
    offsets = np.moveaxis(np.indices(image_shape), 0, -1) - np.array(image_shape) // 2
    if len(factor) == 1:
        offsets = (offsets @ [image_shape[1], 1])[..., None]
    return _gaussian(factor, offsets, summary), np.all(np.abs(offsets) <= _half_spans(factor, summary), axis=-1)
