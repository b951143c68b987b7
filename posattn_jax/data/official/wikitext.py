"""WikiText (Merity 2017) as text with one sentence per line."""

import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping

from posattn_jax.data.official import archives
from posattn_jax.system.doing import doing

ARCHIVE = "wikitext-103-raw-v1.zip"


def articles(lines: Iterable[str]) -> Iterator[list[str]]:
    """The sentences of each article, without headings. WikiText's " @-@ " becomes "-", and "<unk>" becomes "unk"."""
    article: list[str] = []
    has_begun = False
    for line in lines:
        line = re.sub(r" @(.)@ ", r"\1", line).replace("<unk>", "unk").strip()
        if re.fullmatch(r"= [^=].*[^=] =", line):
            if has_begun:
                yield article
            article, has_begun = [], True
        elif line and not line.startswith("="):
            article += re.split(r"(?<= [.?!]) (?![a-z])", line)
            has_begun = True
    if has_begun:
        yield article


def write(there: Mapping[str, pathlib.Path], folder: pathlib.Path) -> dict[str, int]:
    """Writes train/ and validation/, with blank lines between articles; returns the number of sentences of each."""
    counts = {}
    for part, stem in (("train", "train"), ("validation", "valid")):
        path = folder / part / "wikitext103.txt"
        path.parent.mkdir()
        counts[part] = 0
        with doing(f"{part} from {ARCHIVE}", after=0.0), path.open("w", encoding="utf-8", newline="\n") as file:
            for article in articles(archives.lines(there[ARCHIVE], f"wikitext-103-raw/wiki.{stem}.raw")):
                file.writelines(f"{sentence}\n" for sentence in (*article, ""))
                counts[part] += len(article)
    return counts
