"""Mixers compared by their translations, as Schmidt 2023 prints them: scores, sizes, and paired bootstrap tests."""

from typing import Any

import numpy as np

from posattn_jax.analysis.markdown_text import mean_and_error, table
from posattn_jax.analysis.runs import Runs

# What the queries and the keys of a mixer know, in the order of the paper's Figure 2.
KNOWS = {
    ("position", "position"): "position-position\n(aPosNet)",
    ("position", "relative"): "position-position\n(rPosNet)",
    ("content", "relative"): "token-position",
    ("content", "content"): "token-token",
    ("content", "content", "relative"): "token-token\n+ token-position",
}


def compose(runs: Runs) -> str | None:
    """The table, where runs are judged by their translations.

    BLEU and chrF are means over seeds, with standard errors of the mean where there are several. p is that of a
    paired bootstrap test of the translations of one seed against those of the first treatment with the same seed: of
    these two runs, not of what other seeds would give. It is left out where the translations are gone.
    """
    if runs.plan.response not in ("bleu", "chrf"):
        return None
    rows = []
    for name, of_one in runs.runs.items():
        p = {metric: f"{value:.3f}" for metric, value in runs.p.get(name, {}).items()}
        hours = np.mean([run.summary["seconds"] for run in of_one]) / 3600
        row = [runs.plan.treatment(name).label, str(len(of_one)), f"{of_one[0].summary['num_parameters']:,}"]
        row += [mean_and_error([run.figures["bleu"] for run in of_one], "{:.2f}"), p.get("bleu", "")]
        rows.append(
            [*row, mean_and_error([run.figures["chrf"] for run in of_one], "{:.2f}"), p.get("chrf", ""), f"{hours:.2f}"]
        )
    signatures = dict.fromkeys(run.figures[f"{metric}_signature"] for run in runs.all for metric in ("bleu", "chrf"))
    header = ["", "n", "parameters", "BLEU", "p", "chrF", "p", "hours a run"]
    return f"{table(header, rows)}\n\nSignatures: {'; '.join(f'`{signature}`' for signature in signatures)}."


def gating(runs: Runs) -> dict[str, tuple[float | None, float | None]] | None:
    """The response with the gate and without, by what queries and keys know; None where no pair was measured."""
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
