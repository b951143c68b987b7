"""Reads text: UTF-8 as lines, and each line as the text that is tokenised; files of one sentence per line.

Training, evaluation and the commands that read their standard input all read text with the functions of this module.
"""

import codecs
import functools
import gzip
import hashlib
import os
import pathlib
import zlib
from collections.abc import Iterable, Iterator

from posattn_jax.data.pipeline.checksums import Files, found_below
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import files_below

SUFFIXES = (".txt", ".txt.gz")


def normalised(text: str) -> str:
    """The text with a space for any white space: tabs, no-break and ideographic spaces, U+2028, a lone "\\r", ..."""
    return " ".join(text.split())


def decoded(lines: Iterable[bytes], name: str) -> Iterator[str | InputError]:
    """Each line of a text in UTF-8 without its end, or an error with the text's `name` if it is not UTF-8.

    Lines end with "\\n" or "\\r\\n", and nothing else ends one. A byte order mark at the start of the text is dropped.
    """
    for number, line in enumerate(lines, start=1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8").removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            yield InputError(f"{name}: line {number} is no UTF-8")


def sentences(lines: Iterable[bytes], name: str) -> Iterator[str]:
    """The lines of a text in UTF-8 with normalised white space: see `decoded`.

    Raises:
      InputError: a line is not UTF-8.
    """
    for line in decoded(lines, name):
        if isinstance(line, InputError):
            raise line
        yield normalised(line)


def plain(text: bytes) -> bytes:
    """The text without a byte order mark at its start, and with "\\n" at the ends of lines: see `decoded`."""
    return text.removeprefix(codecs.BOM_UTF8).replace(b"\r\n", b"\n")


def find(path: pathlib.Path, field: str) -> list[pathlib.Path]:
    """The text files below a folder, ordered by name; or `path` itself if it is a file.

    Linked folders are followed, hidden files left out: see `files_below`. A file to which several links lead is there
    once, by its first name.

    Raises:
      InputError: there is none, one is there plain and gzipped, or a link leads to nothing. The message names the
        config's `field`.
    """
    if path.is_file():
        return [path]
    found, wrong = files_below(path)
    if wrong:
        raise InputError(f"{field}: {wrong[0]}")
    first: dict[str, pathlib.Path] = {}
    for file in found:
        if file.name.endswith(SUFFIXES):
            first.setdefault(os.path.realpath(file), file)
    files = [*first.values()]
    if not files:
        raise InputError(f"{field}={path}: no text there (expected a file, or a folder with {' or '.join(SUFFIXES)})")
    there = set(files)
    if twin := next((file for file in files if file.with_name(f"{file.name}.gz") in there), None):
        raise InputError(f"{field}={path}: has {twin} and {twin.name}.gz: expected one of them")
    return files


def find_held_out(path: pathlib.Path, trained_on: Iterable[pathlib.Path]) -> list[pathlib.Path]:
    """The text files of `data.validation_dir`, as by `find`. Raises InputError if one of them is trained on too."""
    found, known = find(path, "data.validation_dir"), set(map(os.path.realpath, trained_on))
    if both := next((file for file in found if os.path.realpath(file) in known), None):
        raise InputError(f"data.validation_dir={path}: {both} is in data.dir too: expected other files")
    return found


def of_run(folder: str, validation_folder: str) -> Files:
    """The text files of `data.dir` and, if it is given, `data.validation_dir`, by their names for `checksums`."""
    found = {}
    for field, path in {"data.dir": folder, "data.validation_dir": validation_folder}.items():
        if path:
            found |= found_below(path, functools.partial(find, pathlib.Path(path), field), field)
    return found


def lines(files: Iterable[pathlib.Path]) -> Iterator[str]:
    """The `sentences` of each file, and "" after each document. The end of a file ends a document.

    Raises:
      InputError: a file is not UTF-8, or is damaged.
    """
    for path in files:
        number = 0
        try:
            with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
                for line in sentences(file, str(path)):
                    number += 1
                    yield line
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{path}: cannot be read after line {number} ({error})") from error
        yield ""


def fingerprint(files: Iterable[pathlib.Path], *more: object) -> str:
    """A hash of the contents of the files, in their order, and of `more`, on which a result also depends."""
    digest = hashlib.sha256(repr(more).encode())
    for path in files:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
