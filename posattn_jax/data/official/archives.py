"""Reads texts in archives as streams, without unpacking them."""

import contextlib
import fnmatch
import gzip
import pathlib
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO

from posattn_jax.system.errors import InputError


def lines(archive: pathlib.Path, pattern: str) -> Iterator[str]:
    """The lines of the files in a .tgz, .tar or .zip whose names match the pattern, ordered by file name.

    Only a line feed ends a line. Bytes that are not UTF-8 become U+FFFD. Files .gz in the archive are unzipped.

    Raises:
      InputError: no file matches, or the archive is damaged.
    """
    name = pattern
    try:
        with contextlib.ExitStack() as stack:
            if archive.suffix == ".zip":
                zipped = stack.enter_context(zipfile.ZipFile(archive))
                names, opened = zipped.namelist(), zipped.open
            else:
                tar = stack.enter_context(tarfile.open(archive))
                names, opened = tar.getnames(), lambda name: _member(tar, name)
            found = sorted(name for name in names if fnmatch.fnmatchcase(name.removeprefix("./"), pattern))
            if not found:
                raise InputError(f"{archive} has no {pattern}")
            for name in found:
                file = stack.enter_context(opened(name))
                if name.endswith(".gz"):
                    file = stack.enter_context(gzip.open(file))
                for line in file:
                    yield line.removesuffix(b"\n").decode("utf-8", "replace")
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        raise InputError(f"{archive} cannot be read at {name} ({error}): get it again") from error


def _member(tar: tarfile.TarFile, name: str) -> IO[bytes]:
    file = tar.extractfile(name)
    if file is None:
        raise tarfile.TarError("is no plain file")
    return file
