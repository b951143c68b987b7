"""Curves over training, as the pictures of a run and of a sweep have them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from posattn_jax.analysis.curves import Curve
from posattn_jax.system.pictures import style, whole_ticks

# Of a grid of three dimensions the first is one of these: frames of a clip, or slices of a volume.
DIMENSIONS = {1: ("positions",), 2: ("rows", "columns"), 3: ("time or depth", "rows", "columns")}


def marks(curve: Curve, number: int) -> dict[str, Any]:
    """How a curve of this number is drawn: marked at about eight points, those of two curves apart."""
    apart = max(1, len(curve.at) // 8)
    return style(number) | {"markevery": (number % apart, apart)}


def fill(axis: Axes, curve: Curve, number: int, bounds: tuple[float, float] = (-np.inf, np.inf)) -> None:
    """What is between the ends of a curve of this number, where these are known, and within the bounds."""
    if curve.low is not None and curve.high is not None:
        low, high = (np.clip(end, *bounds) for end in (curve.low, curve.high))
        axis.fill_between(curve.at, low, high, color=style(number)["color"], alpha=0.15, linewidth=0)


def over_epochs(axis: Axes) -> None:
    """The scale below curves over epochs, of which there may be less than one."""
    axis.set_xlabel("epoch")
    if axis.get_xlim()[1] > 2:
        whole_ticks(axis.xaxis)


def draw_span_sizes(axis: Axes, layers: Sequence[Curve], grid: Sequence[int], dim: int, title: str) -> None:
    """Spans over epochs, a line a layer, in one dimension of a grid."""
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
