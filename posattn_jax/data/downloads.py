"""Official files: fetched from where they are published, and told from others."""

import hashlib
import io
import logging
import pathlib

import pooch

from posattn_jax.system.errors import InputError

_logger = logging.getLogger(__name__)


def fetch(url: str, checksum: str | None, folder: pathlib.Path) -> None:
    """Downloads a file into `folder` under its own name, unless it is there already.

    It is there only once it is whole: a download that was stopped begins again.

    Args:
      url: of the file.
      checksum: "md5:..." or "sha256:..."; None: none is published.
      folder: made where it is missing.

    Raises:
      InputError: that fails, or it is not what was published.
    """
    try:
        pooch.retrieve(url, checksum, url.rpartition("/")[2], folder, progressbar=True)
    except Exception as error:  # requests, urllib3 and pooch each have their own
        raise InputError(f"{url} cannot be downloaded into {folder}: {error}") from error


def tell_if_not_official(path: pathlib.Path, md5: str | None, content: bytes | None = None) -> None:
    """Warns where a file, or its `content`, has not the MD5 that is published: made otherwise, or damaged."""
    if md5 is None:
        return
    with path.open("rb") as file:
        digest = hashlib.file_digest(file if content is None else io.BytesIO(content), "md5").hexdigest()
    if digest != md5:
        told = path, digest[:12], md5[:12]
        _logger.warning("%s is not the official file: its MD5 is %s..., not %s...; made otherwise, or damaged", *told)
