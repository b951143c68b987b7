"""How every picture looks: its type, colours, lines and markers, its panels, and how it is written."""

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

# Okabe and Ito's, but for yellow, which is too light for lines: told apart by readers who see fewer colours. Curves
# differ in line and marker too, for those who see none, and on paper.
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
LINES = ("-", "--", ":", "-.", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)), (0, (1, 1)))
MARKERS = "osD^vX*P"
BLACK, BLUE, VERMILLION = COLOURS[:3]
# Of numbers: darker is more. With a sign, 0 is white.
FROM_ZERO, SIGNED = "Oranges", "RdBu_r"

plt.rcParams.update(
    {
        "font.family": "DejaVu Sans",  # which matplotlib brings
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


def style(number: int) -> dict[str, Any]:
    """Colour, line and marker of a curve, by its number from 0: no two of the first 56 are alike."""
    kinds = {"color": COLOURS, "linestyle": LINES, "marker": MARKERS}
    return {name: choices[number % len(choices)] for name, choices in kinds.items()}


def panels(
    count: int, columns: int, width: float, height: float, layout: str = "constrained", **options
) -> tuple[Figure, list[Axes]]:
    """A figure with so many panels of about this size in inches, at most `columns` in a row, as even as can be."""
    rows = -(-count // columns)
    columns = -(-count // rows)
    size = (width * columns + 1, height * rows + 0.4)
    figure, axes = plt.subplots(rows, columns, figsize=size, layout=layout, squeeze=False, **options)
    for axis in axes.flat[count:]:
        axis.set_visible(False)
    return figure, list(axes.flat[:count])


def whole_ticks(axis: Axis, most: int = 8) -> None:
    """Ticks at whole numbers, about so many at most."""
    axis.set_major_locator(MaxNLocator(most, integer=True, steps=[1, 2, 5, 10]))


def save(figure: Figure, *paths: pathlib.Path) -> None:
    """Writes a picture in the formats that its names end with, and closes it."""
    for path in paths:
        kind = path.suffix[1:]
        options = {"format": kind, "metadata": {"Date": None} if kind == "svg" else None}
        write_atomically(path, lambda file, options=options: figure.savefig(file, **options))
    plt.close(figure)
