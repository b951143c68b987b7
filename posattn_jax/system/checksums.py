"""The SHA-256 sums of a folder's files, kept in the folder, by which files that were damaged later are found.

The sums are in a text file, which `sha256sum --check SHA256SUMS` can read too.
"""

import hashlib
import logging
import os
import pathlib
import shutil
from collections.abc import Callable

from posattn_jax.system.files import temporary_name, write_text

_logger = logging.getLogger(__name__)
FILE = "SHA256SUMS"


def of_file(path: pathlib.Path) -> str:
    """The SHA-256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write(folder: pathlib.Path) -> None:
    """Writes the sums of all files below `folder`, after the files are on disk."""
    lines = []
    for path in _files(folder):
        with path.open("rb") as file:
            os.fsync(file.fileno())
        lines.append(f"{of_file(path)}  {path.relative_to(folder).as_posix()}\n")
    write_text(folder / FILE, "".join(lines))


def damage(folder: pathlib.Path, below: str = "") -> str | None:
    """The first file that has changed since `write`, and what is wrong with it; None if there is no such file.

    Args:
      folder: the folder that `write` was called for.
      below: only files whose names begin with this subfolder are checked; "": all files.

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
    """Ensures that a folder exists and is undamaged; if not, `make` fills it anew.

    The folder appears only when it is complete, including the SHA-256 sum of each of its files.
    """
    reason = _reason_to_make(path)
    if reason is None:
        return
    if path.exists():
        _logger.warning("%s: %s: it is made anew", path, reason)
    temporary = temporary_name(path)
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
            if not path.exists():  # another process may have made the same folder first
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
    """All files except the sums and hidden files, which network file systems make for a while."""
    paths = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    return sorted(path for path in paths if path != folder / FILE)
