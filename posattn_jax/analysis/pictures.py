"""What the pictures of runs share: styles, panels, curves of spans, and how pictures are written."""

import pathlib
from collections.abc import Iterable

import matplotlib

matplotlib.use("Agg")  # for every picture of this package

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from posattn_jax.analysis.curves import Curve
from posattn_jax.system.files import write_atomically

STYLES = ("-", "--", ":", "-.")
MARKERS = "osD^vX*P"


def panels(
    count: int, columns: int, width: float, height: float, layout: str = "constrained", **options
) -> tuple[Figure, list[Axes]]:
    """A figure with so many panels of about this size in inches, at most `columns` in a row."""
    columns = min(count, columns)
    rows = -(-count // columns)
    size = (width * columns + 1, height * rows + 0.4)
    figure, axes = plt.subplots(rows, columns, figsize=size, layout=layout, squeeze=False, **options)
    for axis in axes.flat[count:]:
        axis.set_visible(False)
    return figure, list(axes.flat[:count])


def fill(axis: Axes, curve: Curve, color: str, alpha: float) -> None:
    """What is between the ends of a curve, where these are known."""
    if curve.low is not None and curve.high is not None:
        axis.fill_between(curve.at, curve.low, curve.high, color=color, alpha=alpha, linewidth=0)


def draw_span_sizes(axis: Axes, layers: Iterable[Curve], size: int, title: str) -> None:
    """Spans over epochs, a line a layer, in a dimension of so many positions."""
    for i, curve in enumerate(layers):
        style = {"linestyle": STYLES[i % 4], "marker": MARKERS[i % 8], "markersize": 4, "markevery": 0.2}
        axis.plot(curve.at, curve.mean, color="black", label=f"layer {i + 1}", **style)
        fill(axis, curve, "black", 0.12)
    whole = 2 * size - 1
    axis.axhline(whole, color="0.7", linewidth=1)
    axis.set_title(title, fontsize="small")
    axis.set(xlabel="epoch", ylabel=f"span (of {whole} offsets)", ylim=(0, 1.1 * whole))
    axis.legend(frameon=False, fontsize="x-small")


def save(figure: Figure, *paths: pathlib.Path) -> None:
    """Writes a picture in the formats that its names end with, and closes it."""
    for path in paths:
        write_atomically(path, lambda file, kind=path.suffix[1:]: figure.savefig(file, format=kind, dpi=150))
    plt.close(figure)
