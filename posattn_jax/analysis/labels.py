"""Writes names next to the points of a plot so that they do not overlap."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from posattn_jax.axes import Float

# Candidate places of a name: these distances from its point, at 16 angles. A line leads to names beyond the second.
DISTANCES = np.array([5, 9, 14, 20, 28, 38, 50, 65, 80])
ANGLES = np.arange(16) * np.pi / 8
AWAY = np.stack([np.cos(ANGLES), np.sin(ANGLES)], -1)
CROWD, POINT, LINE = 60, 7, 1.5  # radius in which points count as crowding; size of a point; width of a line

Place = tuple[float, float]  # x and y, in data


def label_points(
    axis: Axes, points: Sequence[Place], names: Sequence[str], lines: Sequence[tuple[Place, Place]], **font
) -> None:
    """Writes each name near its point, where it covers no other name, point or line if there is room.

    Names of the most crowded points are placed first, each at the best of a few places around its point. The result is
    deterministic.

    Args:
      axis: the axes, on which everything else is drawn already, since the scales must be known.
      points: the points to name.
      names: a name for each point.
      lines: the ends of lines to avoid, which are parallel to the axes.
      **font: the font of the names.
    """
    figure = axis.get_figure()
    figure.draw_without_rendering()  # so that all positions are known
    unit = figure.dpi / 72  # pixels per typographic point, the unit of all lengths here
    at = axis.transData.transform(points) / unit
    ends = [np.sort(axis.transData.transform(each), axis=0) / unit for each in lines]
    taken = [np.stack([point - POINT / 2, point + POINT / 2]) for point in at]
    taken += [np.stack([low - LINE / 2, high + LINE / 2]) for low, high in ends]
    frame = axis.get_window_extent().get_points()[None] / unit
    crowd = [np.count_nonzero(np.hypot(*(at - point).T) < CROWD) for point in at]
    for i in np.argsort(crowd, kind="stable")[::-1]:
        text = axis.text(0, 0, names[i], **font)
        size = np.array(text.get_window_extent().size) / unit + (2, 0)
        text.remove()
        offsets = (AWAY * (DISTANCES[:, None, None] + size / 2)).reshape(-1, 2)
        boxes = at[i] + np.stack([offsets - size / 2, offsets + size / 2], 1)
        outside = size.prod() - _overlaps(boxes, frame)
        costs = _overlaps(boxes, np.stack(taken)) + 10 * outside + np.repeat(DISTANCES, len(AWAY))
        best = int(np.argmin(costs))
        taken.append(boxes[best])
        line = {"arrowstyle": "-", "color": "0.6", "linewidth": 0.7, "shrinkA": 0, "shrinkB": 3}
        own = {"xytext": tuple(offsets[best]), "textcoords": "offset points", "ha": "center", "va": "center"}
        own |= {"arrowprops": line if best >= 2 * len(AWAY) else None, "in_layout": False}
        axis.annotate(names[i], points[i], **own, **font)


def _overlaps(boxes: Float[np.ndarray, "n 2 2"], others: Float[np.ndarray, "m 2 2"]) -> Float[np.ndarray, "n"]:
    """The sum of the areas in which each box overlaps the others."""
    low = np.maximum(boxes[:, None, 0], others[:, 0])
    high = np.minimum(boxes[:, None, 1], others[:, 1])
    return np.prod(np.maximum(high - low, 0), -1).sum(-1)
