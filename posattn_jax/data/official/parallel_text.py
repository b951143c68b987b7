"""Makes translations from the files of IWSLT and WMT, cleaned as by the scripts of Schmidt 2023 (fairseq's)."""

import contextlib
import dataclasses
import itertools
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from posattn_jax.data.official import files
from posattn_jax.system.doing import doing
from posattn_jax.system.errors import InputError

Languages = tuple[str, str]
Clean = Callable[[Iterable[str], str], Iterator[str]]  # (lines, language) -> clean lines
Keep = Callable[..., bool]  # (line in each language) -> whether the pair stays


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a set, which is written to files PART.LANGUAGE.

    Attributes:
      name: the name of the part.
      corpora: for each corpus, the name of an official file, and the patterns of the files in it with the source and
        the target language.
      clean: the function that cleans the lines of a side.
      keep: a function from the languages to the function that decides which pairs stay. None: all stay, so that line
        numbers are those of the corpora.
      num_pairs: the published number of pairs; 0: none is published.
    """

    name: str
    corpora: Sequence[tuple[str, str, str]]
    clean: Clean
    keep: Callable[[Languages], Keep] | None = None
    num_pairs: int = 0


def write(
    languages: Languages, parts: Sequence[Part], there: Mapping[str, pathlib.Path], folder: pathlib.Path
) -> dict[str, int]:
    """Writes the parts from the official files that exist; returns the number of pairs of each part.

    Raises:
      InputError: no file of the first part exists, or a file is damaged.
    """
    counts = {}
    for part in parts:
        corpora = [(there[file], *patterns) for file, *patterns in part.corpora if file in there]
        if corpora:
            pairs = _pairs(corpora, languages, part)
            counts[part.name] = _write([folder / f"{part.name}.{language}" for language in languages], pairs)
            if part.num_pairs and counts[part.name] != part.num_pairs:
                print(f"{part.name}: {counts[part.name]:,} pairs, where {part.num_pairs:,} are published")
    if parts[0].name not in counts:
        raise InputError(f"nothing of {parts[0].name} is there")
    return counts


def _pairs(corpora: list, languages: Languages, part: Part) -> Iterator[tuple[str, ...]]:
    keep = part.keep(languages) if part.keep else None
    for archive, *patterns in corpora:
        sides = (
            part.clean(files.lines(archive, pattern), language)
            for pattern, language in zip(patterns, languages, strict=True)
        )
        with doing(f"{part.name} from {archive.name}, {patterns[0]}", after=0.0):
            for pair in itertools.zip_longest(*sides):
                if None in pair:
                    raise InputError(f"{archive}: {' and '.join(patterns)} have not as many lines")
                if keep is None or keep(*pair):
                    yield pair


def _write(paths: list[pathlib.Path], pairs: Iterator[tuple[str, ...]]) -> int:
    number = 0
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(path.open("w", encoding="utf-8", newline="\n")) for path in paths]
        for pair in pairs:
            number += 1
            for file, line in zip(opened, pair, strict=True):
                file.write(f"{' '.join(line.split())}\n")
    return number


def talks(lines: Iterable[str], language: str) -> Iterator[str]:
    """The text of IWSLT's training files, without tags, and without the addresses, keywords and numbers of talks."""
    for line in lines:
        if not re.search("<url>|<talkid>|<keywords>", line):
            yield re.sub("</?(?:title|description)>", "", line)


def segments(lines: Iterable[str], language: str) -> Iterator[str]:
    """The sentences of a test set in .xml or .sgm, with straight apostrophes."""
    for line in lines:
        if "<seg id" in line:
            yield re.sub(r'<seg id="[0-9]*">\s*|\s*</seg>\s*', "", line).replace("’", "'")


def printable(lines: Iterable[str], language: str) -> Iterator[str]:
    """The lines, with a space in place of each non-printable character."""
    for line in lines:
        yield line if line.isprintable() else "".join(each if each.isprintable() else " " for each in line)


def normalised(lines: Iterable[str], language: str) -> Iterator[str]:
    """The lines with punctuation as of Moses' normalize-punctuation.perl, and then as of `printable`."""
    from sacremoses import MosesPunctNormalizer  # of an extra, which other sets do without

    normalizer = MosesPunctNormalizer(language, perl_parity=True)
    # Moses also gets the end of the line
    return printable((normalizer.normalize(f"{line}\n") for line in lines), language)


def of_similar_length(languages: Languages, longest: int = 175, ratio: float = 1.5) -> Keep:
    """Keeps pairs whose sides have 1 to `longest` of Moses' tokens, and at most `ratio` times those of the other."""
    from sacremoses import MosesTokenizer

    tokenizers = [MosesTokenizer(language) for language in languages]

    def keep(*pair: str) -> bool:
        least, most = sorted(len(each.tokenize(line)) for each, line in zip(tokenizers, pair, strict=True))
        return least >= 1 and most <= min(longest, ratio * least)

    return keep
