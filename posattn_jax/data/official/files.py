"""Official files of data sets: finds or downloads them, and checks that they are the published ones."""

import dataclasses
import hashlib
import pathlib
from collections.abc import Callable, Mapping

from posattn_jax.data.pipeline.downloads import fetch
from posattn_jax.system.doing import doing
from posattn_jax.system.errors import InputError


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
