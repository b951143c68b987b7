"""The style of every picture: its fonts, colours, lines, markers and panels; and how it is written."""

import pathlib
from typing import Any

import matplotlib

matplotlib.use("Agg")  # for every picture of this package

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from posattn_jax.system.files import write_atomically

# The colours of Okabe and Ito, which colour-blind readers can tell apart, without yellow, which is too light for lines.
# Curves differ in line and marker too, for readers who see no colours, and for print.
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
LINES = ("-", "--", ":", "-.", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)), (0, (1, 1)))
MARKERS = "osD^vX*P"
BLACK, BLUE, VERMILLION = COLOURS[:3]
# Colour maps of numbers: darker is more. In the map of signed numbers 0 is white.
FROM_ZERO, SIGNED = "Oranges", "RdBu_r"

plt.rcParams.update(
    {
        "font.family": "DejaVu Sans",  # comes with matplotlib
        "font.size": 10,
        "axes.titlesize": 10,
        "axes.labelsize": 10,
        "xtick.labelsize": 9,
        "ytick.labelsize": 9,
        "legend.fontsize": 9,
        "figure.titlesize": 11,
        "figure.labelsize": 10,
        "legend.frameon": False,
        "lines.linewidth": 1.5,
        "lines.markersize": 5,
        "axes.axisbelow": True,
        "grid.color": "0.9",
        "grid.linewidth": 0.6,
        "image.interpolation": "nearest",
        "savefig.dpi": 150,
        "svg.hashsalt": "posattn_jax",  # the same picture is the same file
    }
)


def style(number: int, **instead: str) -> dict[str, Any]:
    """The colour, line and marker of a curve by its number from 0, of which some are replaced; the first 56 differ."""
    kinds = {"color": COLOURS, "linestyle": LINES, "marker": MARKERS}
    return {name: choices[number % len(choices)] for name, choices in kinds.items()} | instead


def panels(
    count: int, columns: int, width: float, height: float, layout: str = "constrained", **options
) -> tuple[Figure, list[Axes]]:
    """A figure with `count` panels of about this size in inches, in rows of about equal length of at most `columns`."""
    rows = -(-count // columns)
    columns = -(-count // rows)
    size = (width * columns + 1, height * rows + 0.4)
    figure, axes = plt.subplots(rows, columns, figsize=size, layout=layout, squeeze=False, **options)
    for axis in axes.flat[count:]:
        axis.set_visible(False)
    return figure, list(axes.flat[:count])


def whole_ticks(axis: Axis, most: int = 8) -> None:
    """Sets ticks at whole numbers, at most about `most` of them."""
    axis.set_major_locator(MaxNLocator(most, integer=True, steps=[1, 2, 5, 10]))


def save(figure: Figure, *paths: pathlib.Path) -> None:
    """Writes a picture in the format of each path's suffix, and closes it."""
    for path in paths:
        kind = path.suffix[1:]
        options = {"format": kind, "metadata": {"Date": None} if kind == "svg" else None}
        write_atomically(path, lambda file, options=options: figure.savefig(file, **options))
    plt.close(figure)
