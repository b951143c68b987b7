"""Official files: fetched from where they are published, and told from others."""

import hashlib
import io
import logging
import pathlib

import pooch

from posattn_jax.system.errors import InputError

_logger = logging.getLogger(__name__)


def fetch(url: str, md5: str, folder: pathlib.Path) -> None:
    """Downloads a file into `folder` under its own name, unless it is there already; InputError where that fails."""
    try:
        pooch.retrieve(url, f"md5:{md5}", url.rpartition("/")[2], folder, progressbar=True)
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
