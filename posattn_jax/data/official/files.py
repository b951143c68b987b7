"""Official files of data sets: finds or downloads them, and checks that they are the published ones."""

import contextlib
import dataclasses
import fnmatch
import gzip
import hashlib
import io
import logging
import pathlib
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import IO

import pooch

from posattn_jax.system.doing import doing
from posattn_jax.system.errors import InputError

_logger = logging.getLogger(__name__)


def fetch(url: str, checksum: str | None, folder: pathlib.Path) -> None:
    """Downloads a file into `folder` under its own name, unless it is there already.

    The file appears only when it is complete. A download that was stopped starts again.

    Args:
      url: the address of the file.
      checksum: "md5:..." or "sha256:..."; None: none is published.
      folder: the folder, which is created if necessary.

    Raises:
      InputError: the download fails, or the file is not the published one.
    """
    try:
        pooch.retrieve(url, checksum, url.rpartition("/")[2], folder, progressbar=True)
    except Exception as error:  # requests, urllib3 and pooch raise different classes
        raise InputError(f"{url} cannot be downloaded into {folder}: {error}") from error


def tell_if_not_official(path: pathlib.Path, md5: str | None, content: bytes | None = None) -> None:
    """Warns if a file, or its `content`, does not have the published MD5, because it differs or is damaged."""
    if md5 is None:
        return
    with path.open("rb") as file:
        digest = hashlib.file_digest(file if content is None else io.BytesIO(content), "md5").hexdigest()
    if digest != md5:
        told = path, digest[:12], md5[:12]
        _logger.warning("%s is not the official file: its MD5 is %s..., not %s...; made otherwise, or damaged", *told)


@dataclasses.dataclass(frozen=True)
class OfficialFile:
    """A published file.

    Attributes:
      url: its address; for a file with a `page`, only its name.
      checksum: "sha256:..." or "md5:..."; "": none is published.
      page: a page that says how to get the file, if access is restricted.
    """

    url: str
    checksum: str = ""
    page: str = ""

    @property
    def name(self) -> str:
        """Its name in a folder."""
        return self.url.rpartition("/")[2]

    def get(self, folder: pathlib.Path, download: bool) -> pathlib.Path:
        """The path of the file in a folder. If it is missing, it is downloaded with `download`, unless it has a `page`.

        Raises:
          InputError: the file is missing, or is not the published one.
        """
        path = folder / self.name
        if not path.is_file():
            if self.page:
                raise InputError(f"{path} is missing: {self.page} says how to get it")
            if not download:
                raise InputError(f"{path} is missing: get it from {self.url}, or with --download")
            fetch(self.url, self.checksum or None, folder)
        elif self.checksum:
            self._verify(path)
        return path

    def _verify(self, path: pathlib.Path) -> None:
        algorithm, _, expected = self.checksum.partition(":")
        with doing(f"verifying {path}"), path.open("rb") as file:
            found = hashlib.file_digest(file, algorithm).hexdigest()
        if found != expected:
            told = f"its {algorithm} is {found[:12]}..., and not {expected[:12]}..."
            raise InputError(f"{path} is damaged, or not the official file ({self.page or self.url}): {told}")


@dataclasses.dataclass(frozen=True)
class OfficialSet:
    """A data set.

    Attributes:
      config: the config that reads it.
      files: the official files from which it is made.
      write: a function that makes the set in a folder from those files that exist, given by name, and returns counts of
        what it wrote. None: the config reads the official files themselves.
      fields: the options of the config, with FOLDER for the folder.
      needs: the libraries of an extra that `write` needs: see `extras.need`.
    """

    config: str
    files: tuple[OfficialFile, ...]
    write: Callable[[Mapping[str, pathlib.Path], pathlib.Path], dict[str, int]] | None = None
    fields: str = "--config.data.dir=FOLDER"
    needs: tuple[str, ...] = ()


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
