"""The config file of a run that has its own config: `--mode=evaluate` reads it if the command line has no --config.

Its variant is the run folder, so that `--config.FIELD=...` changes fields as with any other config file.
"""

import pathlib

from ml_collections import ConfigDict

from posattn_jax.build.experiment import check_version
from posattn_jax.build.saved import settable
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import read_json


def get_config(variant: str) -> ConfigDict:
    """The config in the folder of a run. Raises InputError if there is none."""
    saved = read_json(pathlib.Path(variant, "config.json"))
    if saved is None:
        raise InputError(f"--workdir={variant}: no run there (it has no config.json)")
    check_version(saved, pathlib.Path(variant))
    return settable(saved)
