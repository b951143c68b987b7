"""Configs of run folders, also those that earlier versions saved.

This is a config file too, whose variant is a run folder: `--mode=evaluate` and `--mode=translate` take it if the
command line has no --config, so that `--config.FIELD=...` changes the run's own config as that of any config file.
"""

import json
import pathlib
from typing import Any

from ml_collections import ConfigDict

from posattn_jax.config.names import class_of
from posattn_jax.config.parts import nones, part
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import config_of_run


def get_config(variant: str) -> ConfigDict:
    """The config in the folder of a run. Raises InputError if there is none, or an earlier version wrote it."""
    saved = config_of_run(pathlib.Path(variant))
    check_version(saved, pathlib.Path(variant))
    return settable(saved)


def check_version(config: Any, workdir: pathlib.Path) -> None:
    """Raises InputError if an earlier version wrote the config of the run, in which some groups are not parts."""
    if not isinstance(config, dict | ConfigDict):
        raise InputError(f"--workdir={workdir}: its config.json is no object")
    for group in ("data", "task", "model"):
        found: Any = config.get(group)
        if not isinstance(found, dict | ConfigDict) or "kind" not in found:
            raise InputError(f"--workdir={workdir}: its config.json is of an earlier version: {group} has no kind")


# Fields that classes have got since, and what their classes did before, which is not their defaults: by kind, as it is
# saved, a function of a saved part.
BEFORE = {
    # what was clipped, was clipped with spans
    "posattn_jax.train.optimizer:Adam": lambda saved: {"clips_spans": bool(saved.get("clip_norm"))},
    "posattn_jax.train.settings:Settings": lambda saved: {"merged_batches": "no"},
}


def completed(saved: dict[str, Any]) -> dict[str, Any]:
    """Adds to the parts of a saved config the fields that their classes have got since, with their defaults.

    With these defaults, or those of `BEFORE`, a part behaves as it did before. A part whose class no longer exists
    stays as it is.
    """
    given = {name: completed(value) if isinstance(value, dict) else value for name, value in saved.items()}
    try:
        cls = class_of(given["kind"], "kind")
    except (KeyError, InputError):  # not a part, or its class does not exist
        return given
    now = part(cls)
    before = BEFORE.get(now.kind, lambda saved: {})(given)
    defaults = json.loads(json.dumps(now.to_dict())) | before
    stood_for = {f"{name}s" for name in given if name.endswith("block")}  # `block` and `num_blocks` stand for `blocks`
    return {name: default for name, default in defaults.items() if name not in stood_for} | given


def settable(saved: dict[str, Any]) -> ConfigDict:
    """A saved config as its config file made it: a command line can set tuples and fields that are None.

    JSON has turned tuples into lists. A field that is None has a type only in its class.
    """
    return ConfigDict(_typed(saved))


def _typed(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    if not isinstance(value, dict):
        return value
    try:
        empty = nones(class_of(value["kind"], "kind"))
    except (KeyError, InputError):  # see `completed`
        empty = {}
    return {name: empty.get(name) if each is None else _typed(each) for name, each in value.items()}
