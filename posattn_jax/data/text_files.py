"""Reads text as a stream: a file or a folder of files, one sentence per line, blank lines between documents."""

import gzip
import hashlib
import pathlib
import zlib
from collections.abc import Iterable, Iterator

from posattn_jax.system.errors import InputError
from posattn_jax.system.files import files_below

SUFFIXES = (".txt", ".txt.gz")


def find(path: pathlib.Path, field: str) -> list[pathlib.Path]:
    """The text files below a folder, ordered by name; or `path` itself if it is a file.

    Linked folders are followed, hidden files left out: see `files_below`.

    Raises:
      InputError: there is none, or a link leads to nothing. The message names the config's `field`.
    """
    if path.is_file():
        return [path]
    found, wrong = files_below(path)
    if wrong:
        raise InputError(f"{field}: {wrong[0]}")
    files = [file for file in found if file.name.endswith(SUFFIXES)]
    if not files:
        raise InputError(f"{field}={path}: no text there (expected a file, or a folder with {' or '.join(SUFFIXES)})")
    return files


def lines(files: Iterable[pathlib.Path]) -> Iterator[str]:
    """The lines, with normalised white space, and "" after each document. The end of a file ends a document.

    Raises:
      InputError: a file is not UTF-8, or is damaged.
    """
    for path in files:
        number = 0
        try:
            with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
                for number, line in enumerate(file, start=1):
                    yield " ".join(line.decode("utf-8-sig" if number == 1 else "utf-8").split())
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: line {number} is no UTF-8") from error
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
