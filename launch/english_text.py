"""Makes the English text that configs/bert.py:tiny is trained on, of four sets in the form in which they are published.

  python launch/english_text.py FROM TO

FROM holds tatoeba-deu-eng/deu-eng.zip (manythings.org/anki), multi30k/{train,val}.en.gz, wikitext2/{valid,test}.txt
and glue/SST-2/{train,dev}.tsv. TO becomes train/ and validation/, a file a set, one sentence a line, blank lines
between WikiText's articles. Of Tatoeba every 40th distinct sentence, and of WikiText every 20th article, is for
validation; the others have a part for it. SST-2's phrases are kept where they are part of no longer one.
"""

import argparse
import gzip
import pathlib
import sys
import zipfile
import zlib

from posattn_jax.data.official.sets import articles
from posattn_jax.data.text import text_files
from posattn_jax.system import command_line
from posattn_jax.system.errors import InputError


def make(source: pathlib.Path, target: pathlib.Path) -> None:
    """Writes all files; InputError if one of the published ones cannot be read."""
    parts = {
        "tatoeba": tatoeba(source / "tatoeba-deu-eng/deu-eng.zip"),
        "multi30k": [lines(source / f"multi30k/{name}.en.gz") for name in ("train", "val")],
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
    english = list(dict.fromkeys(line.split("\t")[0] for line in lines(archive, "deu.txt")))
    return [[line for i, line in enumerate(english) if i % 40], english[::40]]


def wikitext(*paths: pathlib.Path) -> list[list[str]]:
    """Sentences of articles, blank lines between these."""
    found = [article for path in paths for article in articles(lines(path))]
    return [
        [line for i, article in enumerate(found) if (i % 20 == 0) == held_out for line in (*article, "")]
        for held_out in (False, True)
    ]


def sst2(path: pathlib.Path) -> list[str]:
    """Phrases that are part of no longer one."""
    phrases = {line.split("\t")[0].strip() for line in lines(path)[1:]}
    kept, text = [], ""
    for phrase in sorted(phrases, key=lambda each: (-len(each), each)):
        if f" {phrase} " not in text:
            kept.append(phrase)
            text += f"\n {phrase} "
    return sorted(kept)


def lines(path: pathlib.Path, member: str = "") -> list[str]:
    """The lines of a text, of a gzipped one, or of a member of a .zip."""
    try:
        if member:
            with zipfile.ZipFile(path) as archive:
                text = archive.read(member)
        else:
            text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        return text_files.plain(text).decode().removesuffix("\n").split("\n")
    except (OSError, EOFError, KeyError, ValueError, zlib.error, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: cannot be read ({error})") from error


def main(argv: list[str]) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=pathlib.Path, metavar="FROM")
    parser.add_argument("target", type=pathlib.Path, metavar="TO")
    options = parser.parse_args(argv[1:])
    make(options.source, options.target)
    return 0


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv))
