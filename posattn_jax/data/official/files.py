"""Files as they are published, and sets of them: found in a folder, or fetched into it, and told from others."""

import dataclasses
import hashlib
import pathlib
from collections.abc import Callable, Mapping

from posattn_jax.data.downloads import fetch
from posattn_jax.system.doing import doing
from posattn_jax.system.errors import InputError


@dataclasses.dataclass(frozen=True)
class OfficialFile:
    """A file.

    Attributes:
      url: where it is published; of a file that has a `page`, its name.
      checksum: "sha256:..." or "md5:..."; "": none is published.
      page: that says how to get it, where it is not given to everyone.
    """

    url: str
    checksum: str = ""
    page: str = ""

    @property
    def name(self) -> str:
        """Under which it lies in a folder."""
        return self.url.rpartition("/")[2]

    def get(self, folder: pathlib.Path, download: bool) -> pathlib.Path:
        """The file in a folder, fetched where it is not there, if `download` says so and its host allows it.

        Raises:
          InputError: it is missing, or is not what was published.
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
    """A set.

    Attributes:
      config: that reads it.
      files: of which it is made.
      write: makes it of those that are there, by their names, in a folder, and counts what that has; None: the config
        reads the files themselves.
      fields: of the config, with FOLDER for the folder.
    """

    config: str
    files: tuple[OfficialFile, ...]
    write: Callable[[Mapping[str, pathlib.Path], pathlib.Path], dict[str, int]] | None = None
    fields: str = "--config.data.dir=FOLDER"
