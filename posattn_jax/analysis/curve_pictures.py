"""Draws curves over training, for the pictures of a run and of a sweep."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from posattn_jax.analysis.runs.curves import Curve
from posattn_jax.system.plot_style import style, whole_ticks

# The first of three dimensions is time or depth: frames of a clip, or slices of a volume.
DIMENSIONS = {1: ("positions",), 2: ("rows", "columns"), 3: ("time or depth", "rows", "columns")}


def marks(curve: Curve, number: int) -> dict[str, Any]:
    """The style of the curve with this number. It has about eight markers, at other points than the next curves."""
    apart = max(1, len(curve.at) // 8)
    return style(number) | {"markevery": (number % apart, apart)}


def fill(axis: Axes, curve: Curve, number: int, bounds: tuple[float, float] = (-np.inf, np.inf)) -> None:
    """Fills the area between `low` and `high` of a curve, if they are known, clipped to the bounds."""
    if curve.low is not None and curve.high is not None:
        low, high = (np.clip(end, *bounds) for end in (curve.low, curve.high))
        axis.fill_between(curve.at, low, high, color=style(number)["color"], alpha=0.15, linewidth=0)


def over_epochs(axis: Axes) -> None:
    """Sets the horizontal axis of curves over epochs. There may be less than one epoch."""
    axis.set_xlabel("epoch")
    if axis.get_xlim()[1] > 2:
        whole_ticks(axis.xaxis)


def draw_span_sizes(axis: Axes, layers: Sequence[Curve], grid: Sequence[int], dim: int, title: str) -> None:
    """Draws spans over epochs in one dimension of a grid, a line per layer."""
    for i, curve in enumerate(layers):
        axis.plot(curve.at, curve.mean, label=f"layer {i + 1}", **marks(curve, i))
        fill(axis, curve, i)
    whole, name = 2 * grid[dim] - 1, DIMENSIONS[len(grid)][dim]
    axis.axhline(whole, color="0.7", linewidth=1)
    largest = max(float(curve.mean.max() if curve.high is None else curve.high.max()) for curve in layers)
    axis.set_title(title)
    axis.set(ylabel=f"span, {name} (of {whole:,} offsets)", ylim=(0, 1.1 * min(whole, 1.3 * largest)))
    axis.legend(fontsize="small")
    over_epochs(axis)
