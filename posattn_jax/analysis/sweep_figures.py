"""Pictures of a sweep. Every run is a point, or is part of an interval."""

import pathlib
import textwrap
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from posattn_jax.analysis.comparison import by_cost
from posattn_jax.analysis.curve_pictures import draw_span_sizes, fill, marks, over_epochs
from posattn_jax.analysis.position_figures import gating
from posattn_jax.analysis.runs import Runs
from posattn_jax.analysis.runs.curves import Curve
from posattn_jax.analysis.span_pictures import draw_profiles, draw_spans
from posattn_jax.analysis.tables import lines_of
from posattn_jax.system.files import value_at
from posattn_jax.system.plot_style import BLACK, BLUE, VERMILLION, panels, save, style, whole_ticks

COLUMNS = 3
MOST_CURVES = 8  # in one panel

# The inputs of the queries and the keys of a mixer, in the order of the paper's Figure 2.
KNOWS = {
    ("position", "position"): "position-position\n(aPosNet)",
    ("position", "relative"): "position-position\n(rPosNet)",
    ("content", "relative"): "token-position",
    ("content", "content"): "token-token",
    ("content", "content", "relative"): "token-token\n+ token-position",
}


def draw_sweep(runs: Runs, folder: pathlib.Path) -> dict[str, str]:
    """Draws all pictures for which the runs have data, as .svg and .png; returns the captions by name."""
    judged = f"{runs.judged_by.capitalize()} {runs.plan.response} while training"
    gates = _gates(runs)
    drawings = {
        "box_plots": (
            _box_plots(runs),
            f"{runs.response_title}: every point is a run; boxes are quartiles, whiskers reach to the extremes, a "
            "diamond is the mean.",
        ),
        "by_field": (_by_field(runs), f"{runs.response_title}: every point is a run, lines are means."),
        "learning_curves": (_learning_curves(runs), f"{judged}: means, and 95% intervals of the mean (t)."),
        "spans": (
            draw_spans(runs),
            "What the central pixel attends to after the best epoch, on an image: it fades into grey as the learned "
            "Gaussian falls, a line is the border of a span smaller than the image. Means over seeds.",
        ),
        "span_profiles": (
            draw_profiles(runs),
            "Learned spans next to each other: the Gaussian through the central pixel after the best epoch, 0 outside "
            "the span; of other windows, such as a ramp, their box. Means over seeds.",
        ),
        "span_sizes": (_span_sizes(runs), "Learned spans with a mask, over epochs: means over seeds, and their range."),
        "comparison": (
            by_cost(runs),
            f"{runs.response_title} against the CPU time of an update: means, and of three runs and more 95% intervals "
            "of the mean (t), within what is possible.",
        ),
        "gating": (
            gates and gating(gates, runs.plan.response),
            "What the gate is worth, by what queries and keys know: means over seeds.",
        ),
        "seconds": (_against_seconds(runs), f"{judged}, against seconds, evaluation included: means over seeds."),
    }
    drawn = {name: drawing for name, drawing in drawings.items() if drawing[0]}
    for name, (figure, _) in drawn.items():
        save(figure, folder / f"{name}.png", folder / f"{name}.svg")
    return {name: caption for name, (_, caption) in drawn.items()}


def _box_plots(runs: Runs) -> Figure:
    """Box plots of the responses, as in the paper's Figures 5 and 6."""
    names = list(runs.runs)
    figure, (axis,) = panels(1, 1, 6.0, 0.8 + 0.5 * len(names))
    responses = [runs.responses(name) for name in names]
    places = np.arange(len(names), 0, -1)
    axis.boxplot(
        responses,
        positions=places,
        orientation="horizontal",
        widths=0.6,
        whis=(0, 100),
        showmeans=True,
        meanprops={"marker": "D", "markerfacecolor": "white", "markeredgecolor": VERMILLION},
        medianprops={"color": BLACK},
    )
    for place, values in zip(places, responses, strict=True):
        spread = np.linspace(-0.15, 0.15, len(values)) if len(values) > 1 else np.zeros(1)
        axis.plot(values, place + spread, "o", color=BLUE, markersize=4)
    axis.set_yticks(places, [runs.figure_label(name, len(runs.runs[name])) for name in names])
    axis.set_xlabel(textwrap.fill(runs.response_label, 50))
    axis.grid(axis="x")
    return figure


def _by_field(runs: Runs) -> Figure | None:
    """The response against the field `axis` of the plan, with every run, as in Figures 4 and 5b of Fan 2025."""
    axis_field = runs.plan.axis
    if axis_field is None or any(isinstance(value_at(run.config, axis_field), str) for run in runs.all):
        return None
    figure, (axis,) = panels(1, 1, 5.0, 3.6)
    for i, (label, names) in enumerate(lines_of(runs).items()):
        at = [value_at(runs.runs[name][0].config, axis_field) for name in names]
        responses = [runs.responses(name) for name in names]
        drawn = sorted({len(each) for each in responses})
        counts = f"n = {drawn[0]}" if len(drawn) == 1 else f"n = {drawn[0]} to {drawn[-1]}"
        axis.plot(at, [np.mean(each) for each in responses], label=f"{label} ({counts} each)", **style(i))
        for place, each in zip(at, responses, strict=True):
            axis.plot([place] * len(each), each, fillstyle="none", **style(i, linestyle=""))
    axis.set(xlabel=axis_field, ylabel=textwrap.fill(runs.response_label, 40))
    whole_ticks(axis.xaxis)
    axis.grid()
    axis.legend()
    return figure


def _learning_curves(runs: Runs) -> Figure | None:
    """A panel for every hypothesis, with the treatment and its control; without hypotheses, one panel with all."""
    groups = [h.names for h in runs.plan.hypotheses if len(h.names) == 2 and {*h.names} <= {*runs.runs}]
    curves = _drawable(runs, "epochs")
    groups = [[name for name in names if name in curves] for names in groups or [tuple(runs.runs)]]
    groups = [names for names in groups if names]
    if not groups:
        return None
    figure, axes = panels(len(groups), COLUMNS, 4.0, 3.0)
    for axis, names in zip(axes, groups, strict=True):
        extremes = []
        for i, name in enumerate(names):
            curve = curves[name]
            ends = (curve.low, curve.high) if curve.num_runs > 2 else ()  # intervals of two runs reach far beyond
            extremes += [end for each in (curve.mean, *ends) if each is not None for end in (each.min(), each.max())]
            label = textwrap.fill(runs.figure_label(name, curve.num_runs), 34)
            axis.plot(curve.at, curve.mean, label=label, **marks(curve, i))
            fill(axis, curve, i, runs.plan.bounds)
        low, high = np.clip([min(extremes), max(extremes)], *runs.plan.bounds)
        room = 0.05 * (high - low) or 0.05
        axis.set_ylabel(f"{runs.judged_by} {runs.plan.response}")
        over_epochs(axis)
        axis.set_ylim(low - room, high + room)
        axis.legend(fontsize="small")
    return figure


def _span_sizes(runs: Runs) -> Figure | None:
    """A panel for every dimension of every treatment with a span, a line for every layer."""
    grids = {name: of_one[0].summary["grid_shape"] for name, of_one in runs.runs.items()}
    panels_of = [
        (name, dim, layers)
        for name, grid in grids.items()
        for dim in range(len(grid))
        if (layers := [curve for what, curve in runs.curves.get(name, {}).items() if what.endswith(f"/{dim}")])
    ]
    if not panels_of:
        return None
    figure, axes = panels(len(panels_of), COLUMNS, 4.0, 3.0)
    for axis, (name, dim, layers) in zip(axes, panels_of, strict=True):
        draw_span_sizes(axis, layers, grids[name], dim, runs.figure_label(name, layers[-1].num_runs))
    return figure


def _against_seconds(runs: Runs) -> Figure | None:
    """The response over seconds. If there are too many treatments, only those of the hypotheses are drawn."""
    shown = list(runs.runs)
    if len(shown) > MOST_CURVES:
        named = {name for h in runs.plan.hypotheses for name in h.names}
        shown = [name for name in shown if name in named] or shown
    curves = _drawable(runs, "seconds")
    shown = [name for name in shown if name in curves]
    if not shown:
        return None
    figure, (axis,) = panels(1, 1, 6.0, 3.8 + 0.2 * len(shown))  # the legend below may be long
    for i, name in enumerate(shown):
        curve = curves[name]
        axis.plot(curve.at, curve.mean, label=runs.figure_label(name, curve.num_runs), **marks(curve, i))
    axis.set(xlabel="seconds", ylabel=f"{runs.judged_by} {runs.plan.response}")
    axis.grid()
    figure.legend(loc="outside lower center")
    return figure


def _drawable(runs: Runs, what: str) -> dict[str, Curve]:
    """The curves of this kind with more than one point, by treatment."""
    found = {name: curves[what] for name, curves in runs.curves.items() if what in curves}
    return {name: curve for name, curve in found.items() if len(curve.at) > 1}


def _gates(runs: Runs) -> dict[str, tuple[float | None, float | None]] | None:
    """The response with and without the gate, by the inputs of queries and keys; None if no pair was measured."""
    found: dict[tuple[tuple[str, ...], bool], float] = {}
    for name in runs.runs:
        model = runs.runs[name][0].config["model"]
        if "decoder_block" not in model:
            return None
        encoder, decoder = (model[f"{stack}_block"]["mixing"] for stack in ("encoder", "decoder"))
        cross = model["decoder_block"]["cross"]
        if encoder == decoder and _knows(encoder) in KNOWS and _knows(cross) == ("content", "content"):
            found[_knows(encoder), encoder["gate"] is not None] = float(np.mean(runs.responses(name)))
    pairs = {label: (found.get((known, True)), found.get((known, False))) for known, label in KNOWS.items()}
    if not any(None not in pair for pair in pairs.values()):
        return None
    return {label: pair for label, pair in pairs.items() if pair != (None, None)}


def _knows(mixing: dict[str, Any]) -> tuple[str, ...]:
    energies = mixing["energies"]
    return (energies["query"], *energies["keys"]) if energies["kind"] == "DotProducts" else ()
