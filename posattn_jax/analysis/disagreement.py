"""Prints the sentences on which BLEU and COMET disagree most (Schmidt 2023, Table 8), by the ranks of both.

  python -m posattn_jax.analysis.disagreement runs/nmt [--part=test] [--comet=FILE] [--number=10]
  python -m posattn_jax.analysis.disagreement runs/linear runs/gaussian [--comet=FILE,FILE]

runs/nmt is an evaluated run of translation. COMET's scores are those of the command that --mode=evaluate prints, in
runs/nmt/translations/test/comet.json, or in FILE: the same, or a score a line. With two runs, as in the paper, the
sentences are ranked by the first run's score minus the second's. Exit codes: 0 done, 1 failed while running, 2 wrong
input.
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from posattn_jax.analysis import translation_scores
from posattn_jax.analysis.translation_scores import COMET, HYPOTHESIS, REFERENCE, SOURCE
from posattn_jax.axes import Float
from posattn_jax.system import command_line
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import read_json


class Scored(NamedTuple):
    """The sentences of a run, how BLEU reads them, and their scores from 0 to 100 (COMET's may be negative)."""

    name: str
    how: dict[str, Any]
    sources: list[str]
    references: list[str]
    hypotheses: list[str]
    bleu: Float[np.ndarray, "n"]
    comet: Float[np.ndarray, "n"]


def rank_differences(bleu: Float[np.ndarray, "n"], comet: Float[np.ndarray, "n"]) -> Float[np.ndarray, "n"]:
    """(rank by COMET - rank by BLEU) / (n - 1), from -1 to 1. Equal scores share their mean rank."""
    from scipy.stats import rankdata

    return (rankdata(comet) - rankdata(bleu)) / max(1, len(bleu) - 1)


def read(workdir: pathlib.Path, part: str, comet: pathlib.Path | None) -> Scored:
    """Reads the translations of a run, whose BLEU has the tokenisation of its evaluation.

    Raises:
      InputError: the run has not been evaluated on this part, its tokenisation is not installed, or it has no scores of
        COMET.
    """
    folder = workdir / "translations" / part
    signature = ((read_json(workdir / "evaluation.json") or {}).get(part) or {}).get("bleu_signature")
    if signature is None or not (folder / HYPOTHESIS).exists():
        raise InputError(f"{workdir}: no evaluated translations of the part {part}: run --mode=evaluate first")
    path = comet or folder / COMET
    if not path.exists():
        command, _ = translation_scores.outside_commands(folder)
        raise InputError(f"{path}: no scores of COMET: expected --comet=FILE with a score a line, or run {command}")
    scores = translation_scores.scores_of_sentences(folder, path)
    sources, hypotheses, references = (
        (folder / name).read_text(encoding="utf-8").split("\n")[:-1] for name in (SOURCE, HYPOTHESIS, REFERENCE)
    )
    how: dict[str, Any] = {
        "tokenize": translation_scores.tokenize_of_signature(signature),
        "lowercase": "case:lc" in signature.split("|"),
    }
    if how["tokenize"] is None or not translation_scores.is_installed(how["tokenize"]):
        raise InputError(f"{workdir}: BLEU's tokenisation is not installed here: {signature}")
    bleu = np.array(translation_scores.sentence_bleu(hypotheses, references, **how))
    return Scored(str(workdir), how, sources, references, hypotheses, bleu, 100 * np.array(scores))


def tell(runs: Sequence[Scored], number: int) -> list[str]:
    """The lines that describe the `number` sentences of one run, or of two, with the largest rank differences.

    Raises:
      InputError: two runs have other sentences, or were scored in other ways.
    """
    first, *others = runs
    if any(other.how != first.how for other in others):
        raise InputError(f"{others[0].name}: BLEU with {others[0].how}: expected {first.how}, as {first.name} has")
    if any((other.sources, other.references) != (first.sources, first.references) for other in others):
        raise InputError(f"{others[0].name}: expected the sentences and references of {first.name}")
    bleu, comet = (getattr(first, name) - (getattr(others[0], name) if others else 0.0) for name in ("bleu", "comet"))
    differences = rank_differences(bleu, comet)
    lines = [
        f"{len(bleu):,} sentences, ranked by BLEU and by COMET{' of the first minus the second' if others else ''}"
    ]
    for i in np.argsort(-np.abs(differences), kind="stable")[:number]:
        more = "COMET" if differences[i] > 0 else "BLEU"
        lines += ["", f"sentence {i + 1}: {more} ranks it higher, by {abs(differences[i]):.0%} of all sentences"]
        lines += [f"  source: {first.sources[i]}", f"  reference: {first.references[i]}"]
        lines += [
            f"  {run.name}: {run.hypotheses[i]}  [BLEU {run.bleu[i]:.1f}, COMET {run.comet[i]:.1f}]" for run in runs
        ]
    return lines


def main(argv: list[str]) -> int:
    """Parses the command line and prints the sentences; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workdirs", type=pathlib.Path, nargs="+", help="an evaluated run of translation, or two")
    parser.add_argument("--part", default="test", help="validation or test")
    parser.add_argument("--comet", default="", help="the file of COMET's scores, or two with a comma between them")
    parser.add_argument("--number", type=int, default=10, help="the number of sentences to print")
    options = parser.parse_args(argv[1:])
    files = [pathlib.Path(each) for each in options.comet.split(",") if each] or [None] * len(options.workdirs)
    if len(options.workdirs) > 2 or len(files) != len(options.workdirs):
        given = f"{len(options.workdirs)} runs and {len(files)} files of --comet"
        raise InputError(f"{given}: expected one run or two, and a file for each or none")
    if options.number < 1:
        raise InputError(f"--number={options.number}: expected 1 or more")
    pairs = zip(options.workdirs, files, strict=True)
    print(*tell([read(workdir, options.part, file) for workdir, file in pairs], options.number), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv))
