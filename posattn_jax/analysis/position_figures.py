"""Pictures of attention between positions: energies and weights of every head, and the effect of a gate."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from posattn_jax.axes import Float
from posattn_jax.system.plot_style import FROM_ZERO, SIGNED, panels, style, whole_ticks

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
    _check_tokens(weights, query_tokens, key_tokens)
    figure, axes = _heads(weights, max(2.5, 0.2 * len(key_tokens) + 0.8), "query", "key")
    for axis in axes:
        # "$" is an ordinary token, and not the beginning of a formula.
        axis.set_xticks(range(len(key_tokens)), key_tokens, rotation=90, parse_math=False)
        axis.set_yticks(range(len(query_tokens)), query_tokens, parse_math=False)
    return figure


def alpha_and_beta(
    alpha: Float[np.ndarray, "h t s"],
    beta: Float[np.ndarray, "h t s"],
    query_tokens: Sequence[str],
    key_tokens: Sequence[str],
) -> Figure:
    """What mixes the tokens of a sentence in a gated layer: a row of alpha, beta and their product for each head.

    Each column has one colour scale (Schmidt 2023, section 3).

    Args:
      alpha: the attention weights [h t s].
      beta: the latent weights [h t s], as one number for all features of a head.
      query_tokens, key_tokens: the t and s tokens of the axes.

    Raises:
      ValueError: the numbers of tokens are not t and s.
    """
    _check_tokens(alpha, query_tokens, key_tokens)
    width = max(2.5, 0.2 * len(key_tokens) + 0.8)
    height = width * len(query_tokens) / len(key_tokens)
    figure, axes = panels(3 * len(alpha), 3, width, height + 0.4, layout="compressed")
    columns = {"alpha": alpha, "beta, mean size": beta, "alpha x beta": alpha * beta}
    for column, (name, weights) in enumerate(columns.items()):
        of_column = axes[column::3]
        limit, colours = _colours(weights)
        for head, axis in enumerate(of_column):
            axis.imshow(weights[head], vmax=limit, **colours)
            axis.set_title(f"head {head + 1}: {name}")
            axis.set_yticks(range(len(query_tokens)), query_tokens if column == 0 else [], parse_math=False)
            is_last = head + 1 == len(alpha)
            axis.set_xticks(range(len(key_tokens)), key_tokens if is_last else [], rotation=90, parse_math=False)
            axis.set(ylabel="query" if column == 0 else "", xlabel="key" if is_last else "")
        figure.colorbar(of_column[-1].images[-1], ax=of_column, shrink=0.8, aspect=30, pad=0.01, location="top")
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


def _check_tokens(weights: np.ndarray, query_tokens: Sequence[str], key_tokens: Sequence[str]) -> None:
    if weights.shape[1:] != (len(query_tokens), len(key_tokens)):
        raise ValueError(
            f"weights of {weights.shape[1]} queries and {weights.shape[2]} keys: {len(query_tokens)} and "
            f"{len(key_tokens)} tokens were given"
        )


def _colours(values: np.ndarray) -> tuple[float, dict[str, Any]]:
    """The largest size of the finite values, and the colours from 0, or from minus that if some are negative."""
    finite = values[np.isfinite(values)]
    limit = float(np.abs(finite).max(initial=0.0)) or 1.0
    signed = bool((finite < 0).any())
    return limit, {"cmap": SIGNED, "vmin": -limit} if signed else {"cmap": FROM_ZERO, "vmin": 0.0}


def _heads(energies: np.ndarray, width: float, down: str, across: str) -> tuple[Figure, list[Any]]:
    """A panel per head, about `width` inches wide, and a colour bar; returns the figure and its panels."""
    heads, queries, keys = energies.shape
    height = width * min(max(queries / keys, 0.4), 2.5)
    figure, drawn = panels(heads, COLUMNS, width, height + 0.4, layout="compressed")
    finite = np.isfinite(energies)
    limit, colours = _colours(energies)
    placed: Any = drawn[0].get_gridspec()
    for head, axis in enumerate(drawn):
        axis.set_facecolor("0.8")
        axis.imshow(np.where(finite[head], energies[head], np.nan), vmax=limit, **colours)
        axis.set_title(f"head {head + 1}")
        whole_ticks(axis.xaxis)
        whole_ticks(axis.yaxis)
        axis.set_ylabel(down if head % placed.ncols == 0 else "")
        axis.set_xlabel(across if head + placed.ncols >= heads else "")
    figure.colorbar(drawn[-1].images[-1], ax=drawn, label="energy" if colours["vmin"] else "weight", shrink=0.8)
    return figure, drawn
