"""Downloads official files, and checks whether a file is the official one."""

import hashlib
import io
import logging
import pathlib

import pooch

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
