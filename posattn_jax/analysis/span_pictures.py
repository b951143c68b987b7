"""Learned spans drawn on an image, for grids of one and two dimensions (Alfons 2022, Figure 7)."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from posattn_jax.analysis.curves import Spans
from posattn_jax.analysis.figures import half_spans
from posattn_jax.analysis.runs import Runs


def draw_spans(runs: Runs) -> Figure | None:
    """A row for every treatment with a span, a column for every layer; None where there is neither span nor image."""
    rows = runs.spans
    if not rows:
        return None
    columns = max(len(spans.factors) for spans in rows.values())
    figure, panels = plt.subplots(
        len(rows), columns, figsize=(2.3 * columns + 0.6, 2.6 * len(rows)), layout="constrained", squeeze=False
    )
    for panel_row, (name, spans) in zip(panels, rows.items(), strict=True):
        for axis in panel_row:
            axis.set(xticks=[], yticks=[], frame_on=False)
        for axis, layer in zip(panel_row, spans.factors, strict=False):
            _draw_layer(axis, spans, layer, runs.runs[name][0].summary)
        panel_row[0].set_ylabel(runs.figure_label(name, spans.num_runs).replace(" (n", "\n(n"), fontsize="small")
    return figure


def _draw_layer(axis, spans: Spans, layer: str, summary: dict[str, Any]) -> None:
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
    deviations = ", ".join(f"{s:.2f}" for s in np.linalg.norm(factor, axis=1))
    axis.set_title(f"layer {int(layer.split('_')[1]) + 1}: σ = {deviations}", fontsize="small")


def on_image(
    factor: np.ndarray, summary: dict[str, Any], image_shape: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """G, and whether it is inside the span, of every pixel around the central one: two [height, width].

    In one dimension the pixels are a row-major sequence, so a span covers whole rows. `factor` is that of
    `mean_factor`.
    """
    offsets = np.stack(np.indices(image_shape), -1) - np.array(image_shape) // 2
    if len(factor) == 1:
        offsets = (offsets @ [image_shape[1], 1])[..., None]
    x = offsets / np.maximum(np.array(summary["grid_shape"]) - 1, 1)
    z = np.linalg.solve(factor, x.reshape(-1, len(factor)).T)
    half = half_spans(np.linalg.norm(factor, axis=1), summary)
    return np.exp(-0.5 * np.square(z).sum(0)).reshape(image_shape), np.all(np.abs(offsets) <= half, axis=-1)
