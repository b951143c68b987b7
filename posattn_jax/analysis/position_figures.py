"""Pictures of attention between positions: energies and weights of every head, and the effect of a gate."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from posattn_jax.axes import Float
from posattn_jax.system.pictures import FROM_ZERO, SIGNED, panels, style, whole_ticks

COLUMNS = 4


def energies_of_heads(energies: Float[np.ndarray, "h t s"], title: str) -> Figure:
    """Energies, or weights, of positions: a heat map per head, all in one colour scale.

    If some values are negative, the scale is symmetric around 0. Values that are not finite, such as those of masked
    keys, are grey.

    Args:
      energies: [h t s].
      title: the title above the figure.
    """
    figure, _ = _heads(energies, 2.5, "query position", "key position")
    figure.suptitle(title, parse_math=False)
    return figure


def attention_of_a_sentence(
    weights: Float[np.ndarray, "h t s"], query_tokens: Sequence[str], key_tokens: Sequence[str]
) -> Figure:
    """The attention weights of one sentence: a heat map per head, with the tokens at its axes.

    Args:
      weights: [h t s].
      query_tokens: the t tokens of the vertical axis.
      key_tokens: the s tokens of the horizontal axis.

    Raises:
      ValueError: the numbers of tokens are not t and s.
    """
    if weights.shape[1:] != (len(query_tokens), len(key_tokens)):
        raise ValueError(
            f"weights of {weights.shape[1]} queries and {weights.shape[2]} keys: {len(query_tokens)} and "
            f"{len(key_tokens)} tokens were given"
        )
    figure, axes = _heads(weights, max(2.5, 0.2 * len(key_tokens) + 0.8), "query", "key")
    for axis in axes:
        # "$" is an ordinary token, and not the beginning of a formula.
        axis.set_xticks(range(len(key_tokens)), key_tokens, rotation=90, parse_math=False)
        axis.set_yticks(range(len(query_tokens)), query_tokens, parse_math=False)
    return figure


def gating(table: Mapping[str, tuple[float | None, float | None]], score_name: str) -> Figure:
    """The score with and without a gate, by the inputs of queries and keys, in the order of the table.

    Args:
      table: "token-position" -> (score with the gate, score without); None if it was not measured.
      score_name: the label of the axis.
    """
    figure, (axis,) = panels(1, 1, 1.4 * len(table) + 0.8, 3.2)
    series = np.array([[np.nan if score is None else score for score in pair] for pair in table.values()])
    for i, label in enumerate(("with the gate", "without")):
        axis.plot(series[:, i], label=label, **style(i))
        for x, y in enumerate(series[:, i]):
            if np.isfinite(y):
                above = not y < series[x, 1 - i]  # the number of the higher of two points is above it
                place: dict[str, Any] = {"xytext": (0, 7 if above else -7), "va": "bottom" if above else "top"}
                place |= {"bbox": {"facecolor": "white", "edgecolor": "none", "pad": 0.5}}  # lines pass behind it
                axis.annotate(f"{y:.2f}", (x, y), textcoords="offset points", ha="center", fontsize="small", **place)
    axis.set_xticks(range(len(table)), list(table))
    axis.margins(x=0.15, y=0.2)
    axis.set(xlabel="what queries and keys know", ylabel=score_name)
    axis.legend()
    return figure


def _heads(energies: np.ndarray, width: float, down: str, across: str) -> tuple[Figure, list[Any]]:
    """A panel per head, about `width` inches wide, and a colour bar; returns the figure and its panels."""
    heads, queries, keys = energies.shape
    height = width * min(max(queries / keys, 0.4), 2.5)
    figure, drawn = panels(heads, COLUMNS, width, height + 0.4, layout="compressed")
    finite = np.isfinite(energies)
    limit = float(np.abs(energies[finite]).max(initial=0.0)) or 1.0
    signed = bool((energies[finite] < 0).any())
    colours = {"cmap": SIGNED, "vmin": -limit} if signed else {"cmap": FROM_ZERO, "vmin": 0.0}
    columns, image = drawn[0].get_gridspec().ncols, None
    for head, axis in enumerate(drawn):
        axis.set_facecolor("0.8")
        image = axis.imshow(np.where(finite[head], energies[head], np.nan), vmax=limit, **colours)
        axis.set_title(f"head {head + 1}")
        whole_ticks(axis.xaxis)
        whole_ticks(axis.yaxis)
        axis.set_ylabel(down if head % columns == 0 else "")
        axis.set_xlabel(across if head + columns >= heads else "")
    figure.colorbar(image, ax=drawn, label="energy" if signed else "weight", shrink=0.8)
    return figure, drawn
