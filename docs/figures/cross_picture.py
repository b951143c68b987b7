"""Which cross-attention translates which word order: python -m docs.figures.cross_picture SWEEP --out=FILE.png

SWEEP is the folder of a finished sweep of `question_cross.py`. Left, the test BLEU of each run, by language and
mixer. Right, the share of content that each head has learned in the cross-attention of the mixture, by language.
"""

import argparse
import pathlib
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict
from matplotlib.axes import Axes

from configs.lib import common_nmt
from configs.studies.question_cross import MIXERS
from posattn_jax.analysis.runs import Runs, runs_file
from posattn_jax.data.text.number_words import MADE_UP
from posattn_jax.system.errors import InputError
from posattn_jax.system.plot_style import panels, save, style
from posattn_jax.train import pretrained

LANGUAGES = tuple(MADE_UP)


def content_shares(params: Any) -> np.ndarray:
    """The weights of content, the first part, in all `MixedEnergies` of a model: one per head."""
    mixtures = [np.asarray(array) for path, array in flatten_dict(params).items() if path[-1] == "mixture"]
    if not mixtures:
        raise InputError("expected a run of mixed_c: its parameters have no mixture")
    weights = np.exp(np.concatenate(mixtures))
    return weights[:, 0] / weights.sum(1)


def shares_of(sweep: pathlib.Path, runs: Runs, language: str) -> np.ndarray:
    """The shares of content of all finished runs of the mixture in a language. Raises InputError if there is none."""
    name = f"{language}_mixed_c"
    if not runs.responses(name):
        raise InputError(f"{sweep}: no finished run of {name}")
    return np.concatenate([content_shares(pretrained.read(sweep / name / str(run.seed))[0]) for run in runs.runs[name]])


def draw(runs: Runs, shares: dict[str, np.ndarray], out: pathlib.Path) -> None:
    """Draws both into `out`; `shares` has those of all runs, by language."""
    figure, (left, right) = panels(2, 2, 4.6, 3.4)
    _draw_bleu(left, runs)
    for i, language in enumerate(LANGUAGES):
        _dots(right, float(i), shares[language], style(MIXERS.index("mixed_c")), None)
    right.set(ylabel="learned share of content, per head", ylim=(0, 1))
    for axis in (left, right):
        axis.set_xticks(range(len(LANGUAGES)), LANGUAGES)
        axis.grid(axis="y")
    left.legend(loc="lower left")
    save(figure, out)


def _draw_bleu(axis: Axes, runs: Runs) -> None:
    for number, mixer in enumerate(MIXERS):
        for i, language in enumerate(LANGUAGES):
            label = common_nmt.LABELS[mixer] if i == 0 else None
            where = i + 0.2 * (number - (len(MIXERS) - 1) / 2)
            _dots(axis, where, np.array(runs.responses(f"{language}_{mixer}")), style(number), label, 0.1)
    axis.set(ylabel="test BLEU")


def _dots(axis: Axes, where: float, values: np.ndarray, look: dict[str, Any], label: str | None, wide=0.6) -> None:
    """One dot per value, side by side in order."""
    aside = wide * (np.arange(len(values)) + 0.5) / len(values) - wide / 2
    axis.plot(where + aside, np.sort(values), **dict(look, linestyle="none"), label=label)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=pathlib.Path, help="the folder of the sweep")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="the picture to write")
    arguments = parser.parse_args()
    runs_of = arguments.sweep / "report" / "runs.jsonl"
    if not runs_of.exists():
        parser.error(f"{runs_of}: no such file: the sweep has no report")
    try:
        runs = runs_file.read(runs_of)
        draw(runs, {each: shares_of(arguments.sweep, runs, each) for each in LANGUAGES}, arguments.out)
    except InputError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
