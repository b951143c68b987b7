"""Folders that are made once, and kept: whole, and verified whenever they are read."""

import logging
import pathlib
import shutil
from collections.abc import Callable

from posattn_jax.system import checksums
from posattn_jax.system.files import beside

_logger = logging.getLogger(__name__)


def folder(path: pathlib.Path, make: Callable[[pathlib.Path], None]) -> None:
    """Sees to it that a folder is there as it was made: `make` fills it where it is missing, or damaged.

    It is there only once it is whole, with the SHA-256 of each of its files.
    """
    reason = _damage(path)
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
        checksums.write(temporary)
        if path.exists() and _damage(path) is not None:
            path.rename(damaged)
        try:
            temporary.rename(path)
        except OSError:
            if not path.exists():  # where another process was quicker it is the same
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(damaged, ignore_errors=True)


def _damage(path: pathlib.Path) -> str | None:
    try:
        return checksums.damage(path)
    except FileNotFoundError:
        return f"it has no {checksums.FILE}"
