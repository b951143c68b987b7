"""Scores of translations: BLEU and chrF with sacrebleu, tests whether systems differ, and files for other metrics."""

import contextlib
import json
import math
import os
import pathlib
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

from posattn_jax.system.errors import InputError
from posattn_jax.system.files import write_text

Tokenize = Literal["13a", "zh", "ja-mecab", "ko-mecab", "intl", "char", "none"]
# Languages, by their codes in ISO 639, whose words have no spaces between them, or other units than words.
BY_LANGUAGE: dict[str, Tokenize] = {
    **dict.fromkeys(("zh", "zho", "chi", "cmn", "yue", "wuu", "hak", "gan", "hsn", "lzh"), "zh"),
    **dict.fromkeys(("ja", "jpn"), "ja-mecab"),
    **dict.fromkeys(("ko", "kor"), "ko-mecab"),
    **dict.fromkeys(("th", "tha", "lo", "lao", "km", "khm", "my", "mya", "bur", "bo", "bod", "tib"), "char"),
}
BASELINE = "baseline"
SOURCE, HYPOTHESIS, REFERENCE = "source.txt", "hypothesis.txt", "reference.txt"
COMET, BLEURT = "comet.json", "bleurt.txt"  # what their commands write


def tokenize_of(language: str) -> Tokenize:
    """BLEU's tokenisation for a language: "zh" for zh, zh_CN, zh-Hant, cmn, ...; "13a" for those with spaces.

    It is "char" where words have no spaces and sacrebleu has no tokeniser, or its packages (sacrebleu[ja], [ko]) are
    not installed. Its "flores200", which is for all languages, has to be downloaded.
    """
    found = BY_LANGUAGE.get(re.split("[^a-z]", language.lower())[0], "13a")
    return found if is_installed(found) else "char"


def tokenize_of_signature(signature: str) -> Tokenize | None:
    """The tokenisation that a signature of BLEU names, such as "ja-mecab" for "tok:ja-mecab-0.996-IPA"; or None."""
    named = next((field[4:] for field in signature.split("|") if field.startswith("tok:")), "")
    known: tuple[Tokenize, ...] = get_args(Tokenize)
    return next((each for each in known if named == each or named.startswith(f"{each}-")), None)


def is_installed(tokenize: Tokenize) -> bool:
    """Whether sacrebleu has what a tokenisation needs."""
    from sacrebleu.metrics import BLEU

    try:
        BLEU(tokenize=tokenize)
    except (ImportError, RuntimeError):
        return False
    return True


def corpus_scores(
    hypotheses: Sequence[str], references: Sequence[str], tokenize: Tokenize = "13a", lowercase: bool = False
) -> dict[str, Any]:
    """BLEU (Papineni 2002) and chrF (Popović 2015) of a corpus, with sacrebleu (Post 2018).

    Args:
      hypotheses: the translations, one sentence each, without subwords or tokenisation.
      references: a reference for each hypothesis.
      tokenize: the tokenisation of BLEU: see `tokenize_of`. chrF does not use it.
      lowercase: whether to ignore case.

    Returns:
      {"bleu", "chrf"}, from 0 to 100, and {"bleu_signature", "chrf_signature"}, which should be reported with them.

    Raises:
      InputError: the numbers of lines differ, there are no lines, or the tokenisation is unknown.
    """
    metrics = _metrics(tokenize, lowercase)
    _check_lines({"hypotheses": hypotheses}, references)
    scores = {}
    for name, metric in metrics.items():
        scores[name] = float(metric.corpus_score(list(hypotheses), [list(references)]).score)
        scores[f"{name}_signature"] = str(metric.get_signature())
    return scores


def sentence_bleu(
    hypotheses: Sequence[str], references: Sequence[str], tokenize: Tokenize = "13a", lowercase: bool = False
) -> list[float]:
    """BLEU of each sentence alone, from 0 to 100, with n-grams up to its own length. See `corpus_scores`."""
    _check_lines({"hypotheses": hypotheses}, references)
    metric = _metrics(tokenize, lowercase, effective_order=True)["bleu"]
    pairs = zip(hypotheses, references, strict=True)
    return [float(metric.sentence_score(hypothesis, [reference]).score) for hypothesis, reference in pairs]


def paired_bootstrap(
    baseline: Sequence[str],
    systems: Mapping[str, Sequence[str]],
    references: Sequence[str],
    num_samples: int = 1000,
    seed: int = 12345,
    tokenize: Tokenize = "13a",
    lowercase: bool = False,
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Tests whether systems differ from a baseline, by sacrebleu's paired bootstrap (Koehn 2004).

      p = (1 + #{i: |d_i| - mean_j |d_j| > |d|}) / (1 + num_samples)   d_i of resampled sentences, d of all

    If d = 0, p is 1 here. For a system that equals the baseline, sacrebleu's p is 1 / (1 + num_samples).

    Args:
      baseline: the translations of the baseline, one per sentence.
      systems: name -> translations.
      references: the references, one per sentence.
      num_samples: the number of resamplings.
      seed: the seed of the resampling. It must be 1 or more, since 0 means no seed in sacrebleu.
      tokenize, lowercase: see `corpus_scores`.

    Returns:
      system -> {"bleu", "chrf"} -> its `score` from 0 to 100, the `mean` of the resampled scores, the half width `ci`
      of their 95% interval, and the two-sided `p_value`, which is None for the first system, "baseline".
      The signatures of {"bleu", "chrf"}, which should be reported with them.

    Raises:
      InputError: see `corpus_scores`; or num_samples or seed is less than 1, or a system has the name "baseline".
    """
    for field, number in (("num_samples", num_samples), ("seed", seed)):
        if number < 1:
            raise InputError(f"{field}={number}: expected 1 or more")
    if BASELINE in systems:
        raise InputError(f'systems: expected another name than "{BASELINE}"')
    metrics = _metrics(tokenize, lowercase)
    all_systems = {BASELINE: baseline, **systems}
    _check_lines(all_systems, references)

    from sacrebleu.significance import PairedTest

    named: list[tuple[str, Sequence[str]]] = [(name, list(hypotheses)) for name, hypotheses in all_systems.items()]
    with _seed_of_sacrebleu(seed):
        test = PairedTest(named, metrics, [list(references)], test_type="bs", n_samples=num_samples)
    signatures, columns = test()
    tested: dict[str, dict[str, Any]] = {name: {} for name, _ in named}
    for metric, column in zip(metrics, signatures, strict=True):
        results: Any = columns[column]  # the baseline's first
        for name, result in zip(tested, results, strict=True):
            if name != BASELINE and result.score == results[0].score:
                result.p_value = 1.0
            tested[name][metric] = result
    return tested, dict(zip(metrics, map(str, signatures.values()), strict=True))


def write_for_outside_metrics(
    folder: pathlib.Path, sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]
) -> list[pathlib.Path]:
    """Writes source.txt, hypothesis.txt and reference.txt, one sentence per line, for `outside_commands`.

    Line breaks within a sentence become spaces. If the files change, scores of COMET and BLEURT in the folder are
    deleted.

    Raises:
      InputError: the numbers of lines differ, or there are no lines.
    """
    _check_lines({"sources": sources, "hypotheses": hypotheses}, references)
    paths = [folder / name for name in (SOURCE, HYPOTHESIS, REFERENCE)]
    for path, sentences in zip(paths, (sources, hypotheses, references), strict=True):
        text = "".join(" ".join(sentence.splitlines()) + "\n" for sentence in sentences)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            for scores in (COMET, BLEURT):
                (folder / scores).unlink(missing_ok=True)
        write_text(path, text)
    return paths


def p_of_folders(folders: Sequence[pathlib.Path], tokenize: Tokenize, lowercase: bool) -> dict[str, float]:
    """The p of `paired_bootstrap` for {"bleu", "chrf"}, from the folders of a baseline and a system.

    Empty if files are missing, or if the references differ.
    """
    paths = [folder / name for name in (HYPOTHESIS, REFERENCE) for folder in folders]
    if not all(path.exists() for path in paths):
        return {}
    theirs, ours, references, same = (path.read_text(encoding="utf-8").split("\n")[:-1] for path in paths)
    if references != same:
        return {}
    tested, _ = paired_bootstrap(theirs, {"system": ours}, references, tokenize=tokenize, lowercase=lowercase)
    return {metric: float(result.p_value) for metric, result in tested["system"].items()}


def outside_commands(folder: pathlib.Path) -> list[str]:
    """The commands that score the files of a folder with COMET and BLEURT, if installed; see `outside_scores`."""
    names = (SOURCE, HYPOTHESIS, REFERENCE, COMET, BLEURT)
    source, hypothesis, reference, comet, bleurt = (shlex.quote(str(folder / name)) for name in names)
    return [
        f"comet-score -s {source} -t {hypothesis} -r {reference} --model Unbabel/wmt20-comet-da --to_json {comet}",
        f"python -m bleurt.score_files -candidate_file={hypothesis} -reference_file={reference} "
        f"-bleurt_checkpoint=BLEURT-20 -scores_file={bleurt}",
    ]


def outside_scores(folder: pathlib.Path) -> dict[str, float]:
    """Reads {"comet", "bleurt"}: the means over sentences, times 100 as in Schmidt 2023.

    A metric without the file that its command of `outside_commands` writes is left out.

    Raises:
      InputError: a file cannot be read, or does not have a score for each sentence.
    """
    found = {}
    for metric, name in (("comet", COMET), ("bleurt", BLEURT)):
        if (folder / name).exists():
            scores = scores_of_sentences(folder, folder / name)
            found[metric] = 100 * sum(scores) / len(scores)
    return found


def scores_of_sentences(folder: pathlib.Path, path: pathlib.Path) -> list[float]:
    """Reads the score of each sentence of a folder's translations: from COMET's .json, or from a score a line.

    Raises:
      InputError: the file cannot be read, or does not have a score for each sentence.
    """
    try:
        lines = (folder / HYPOTHESIS).read_text(encoding="utf-8").count("\n")
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            (sentences,) = json.loads(text).values()  # by the file of translations
            scores = [float(sentence["COMET"]) for sentence in sentences]
        else:
            scores = list(map(float, text.split()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: cannot be read ({type(error).__name__}: {error})") from error
    if len(scores) != lines or not all(map(math.isfinite, scores)):
        raise InputError(f"{path}: {len(scores)} scores, expected a finite one for each of {lines:,} sentences")
    return scores


def _metrics(tokenize: str, lowercase: bool, **of_bleu: Any) -> dict[str, Any]:
    if tokenize not in get_args(Tokenize):
        raise InputError(f'tokenize="{tokenize}": expected {", ".join(get_args(Tokenize))}')
    from sacrebleu.metrics import BLEU, CHRF

    return {"bleu": BLEU(tokenize=tokenize, lowercase=lowercase, **of_bleu), "chrf": CHRF(lowercase=lowercase)}


def _check_lines(sentences: Mapping[str, Sequence[str]], references: Sequence[str]) -> None:
    for name, lines in sentences.items():
        if len(lines) != len(references):
            raise InputError(f"{name}: {len(lines)} lines, expected as many as the references have: {len(references)}")
    if not references:
        raise InputError("references: 0 lines, expected 1 or more")


@contextlib.contextmanager
def _seed_of_sacrebleu(seed: int) -> Iterator[None]:
    """Sets the seed in the environment, the only place where sacrebleu reads it, when a test is made."""
    name = "SACREBLEU_SEED"
    before = os.environ.get(name)
    os.environ[name] = str(seed)
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
