"""Makes the English text that configs/bert.py:tiny is trained on, of four sets in the form in which they are published.

  python launch/english_text.py FROM TO

FROM holds tatoeba-deu-eng/deu-eng.zip (manythings.org/anki), multi30k/{train,val}.en.gz, wikitext2/{valid,test}.txt
and glue/SST-2/{train,dev}.tsv. TO becomes train/ and validation/, a file a set, one sentence a line, blank lines
between WikiText's articles. Of Tatoeba every 40th distinct sentence, and of WikiText every 20th article, is for
validation; the others have a part for it. SST-2's phrases are kept where they are part of no longer one.
"""

import gzip
import pathlib
import sys
import zipfile

from posattn_jax.data.official.sets import articles
from posattn_jax.data.text import text_files


def main(source: pathlib.Path, target: pathlib.Path) -> None:
    parts = {
        "tatoeba": tatoeba(source / "tatoeba-deu-eng/deu-eng.zip"),
        "multi30k": [multi30k(source / f"multi30k/{name}.en.gz") for name in ("train", "val")],
        "wikitext2": wikitext(source / "wikitext2/valid.txt", source / "wikitext2/test.txt"),
        "sst2": [sst2(source / f"glue/SST-2/{name}.tsv") for name in ("train", "dev")],
    }
    for number, part in enumerate(("train", "validation")):
        for name, sentences in parts.items():
            path = target / part / f"{name}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(f"{line}\n" for line in sentences[number]), encoding="utf-8")
            num_words = sum(len(line.split()) for line in sentences[number])
            print(f"{path}: {sum(map(bool, sentences[number])):,} sentences, {num_words:,} words")


def tatoeba(archive: pathlib.Path) -> list[list[str]]:
    """The English side, each sentence once, in the order of the file."""
    with zipfile.ZipFile(archive) as file:
        english = list(dict.fromkeys(line.split("\t")[0] for line in lines(file.read("deu.txt"))))
    return [[line for i, line in enumerate(english) if i % 40], english[::40]]


def multi30k(path: pathlib.Path) -> list[str]:
    return lines(gzip.decompress(path.read_bytes()))


def wikitext(*paths: pathlib.Path) -> list[list[str]]:
    """Sentences of articles, blank lines between these."""
    found = [article for path in paths for article in articles(lines(path.read_bytes()))]
    return [
        [line for i, article in enumerate(found) if (i % 20 == 0) == held_out for line in (*article, "")]
        for held_out in (False, True)
    ]


def sst2(path: pathlib.Path) -> list[str]:
    """Phrases that are part of no longer one."""
    phrases = {line.split("\t")[0].strip() for line in lines(path.read_bytes())[1:]}
    kept, text = [], ""
    for phrase in sorted(phrases, key=lambda each: (-len(each), each)):
        if f" {phrase} " not in text:
            kept.append(phrase)
            text += f"\n {phrase} "
    return sorted(kept)


def lines(text: bytes) -> list[str]:
    return text_files.plain(text).decode().removesuffix("\n").split("\n")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        main(*map(pathlib.Path, sys.argv[1:]))
    except OSError as error:
        sys.exit(f"english_text: {error.filename}: {error.strerror}")
