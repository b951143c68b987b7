"""The SHA-256 sums of a folder's files, kept in it: what was damaged since is found, and named.

They are one text file, which `sha256sum --check SHA256SUMS` reads as well.
"""

import hashlib
import logging
import os
import pathlib
import shutil
from collections.abc import Callable

from posattn_jax.system.files import beside, write_text

_logger = logging.getLogger(__name__)
FILE = "SHA256SUMS"


def of_file(path: pathlib.Path) -> str:
    """The SHA-256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write(folder: pathlib.Path) -> None:
    """Writes the sums of all files below `folder`, once these are on disk."""
    lines = []
    for path in _files(folder):
        with path.open("rb") as file:
            os.fsync(file.fileno())
        lines.append(f"{of_file(path)}  {path.relative_to(folder).as_posix()}\n")
    write_text(folder / FILE, "".join(lines))


def damage(folder: pathlib.Path, below: str = "") -> str | None:
    """The first file that is not as it was, and what is wrong with it; None: all are.

    Args:
      folder: that `write` was called for.
      below: of which subfolder alone the files are looked at; "": of all.

    Raises:
      FileNotFoundError: the folder has no sums.
    """
    text = (folder / FILE).read_text(encoding="utf-8", errors="replace")
    saved = {name: digest for digest, _, name in (line.partition("  ") for line in text.splitlines())}
    looked_at = [name for name in saved if name.startswith(below)]
    for name in looked_at:
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        try:
            found = of_file(path)
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
        if found != saved[name]:
            size = path.stat().st_size
            return f"{name} has changed: {size} bytes of SHA-256 {found[:12]}..., saved as {saved[name][:12]}..."
    for path in _files(folder):
        if (name := path.relative_to(folder).as_posix()) not in saved and name.startswith(below):
            return f"{name} is not in {FILE}"
    return None


def keep_folder(path: pathlib.Path, make: Callable[[pathlib.Path], None]) -> None:
    """Sees to it that a folder is there as it was made: `make` fills it where it is missing, or damaged.

    It is there only once it is whole, with the SHA-256 of each of its files.
    """
    reason = _reason_to_make(path)
    if reason is None:
        return
    if path.exists():
        _logger.warning("%s: %s: it is made anew", path, reason)
    temporary = beside(path)
    damaged = temporary.with_name(f"{temporary.name}.damaged")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        make(temporary)
        write(temporary)
        if path.exists() and _reason_to_make(path) is not None:
            path.rename(damaged)
        try:
            temporary.rename(path)
        except OSError:
            if not path.exists():  # where another process was quicker it is the same
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(damaged, ignore_errors=True)


def _reason_to_make(path: pathlib.Path) -> str | None:
    try:
        return damage(path)
    except FileNotFoundError:
        return f"it has no {FILE}"


def _files(folder: pathlib.Path) -> list[pathlib.Path]:
    """All but the sums, and hidden ones, such as network file systems make for a while."""
    paths = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    return sorted(path for path in paths if path != folder / FILE)
