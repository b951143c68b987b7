"""Official files fetched from where they are published."""

import pathlib

import pooch

from posattn_jax.errors import InputError


def fetch(url: str, md5: str, folder: pathlib.Path) -> None:
    """Downloads a file into `folder` under its own name, unless it is there already; InputError where that fails."""
    try:
        pooch.retrieve(url, f"md5:{md5}", url.rpartition("/")[2], folder, progressbar=True)
    except Exception as error:  # requests, urllib3 and pooch each have their own
        raise InputError(f"{url} cannot be downloaded into {folder}: {error}") from error
