"""The folder for files that are made once per machine."""

import os
import pathlib


def cache_folder() -> pathlib.Path:
    """`$XDG_CACHE_HOME/posattn_jax`, by default `~/.cache/posattn_jax`."""
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "posattn_jax"
