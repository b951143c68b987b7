"""The run that another one starts from."""

import functools
import json
import pathlib
from collections.abc import Callable
from typing import Any

from ml_collections import ConfigDict

from posattn_jax.system.errors import InputError
from posattn_jax.system.files import flatten
from posattn_jax.train import pretrained

# Of the model's fields, those in which a run may differ from the one it starts from, in whatever part they are;
# for max_length see below.
MAY_DIFFER = ("max_length", "dropout_rate", "mlp_dropout_rate", "kernel_init", "implementation", "remat", "dtype")


def pretrained_run(config: ConfigDict) -> pathlib.Path:
    """The folder of the run that a config starts from.

    Raises:
      InputError: it is no run, or the model of that run is another.
    """
    given, model = config.task.pretrained, config.model.to_dict()
    workdir = pathlib.Path(given.replace("{seed}", str(config.seed)))
    try:
        saved = json.loads((workdir / "config.json").read_text(encoding="utf-8"))
        own, its = flatten(json.loads(json.dumps(model))), flatten(saved["model"])
        positions = saved["model"].get("max_length") or saved["data"]["length"]
    except (OSError, json.JSONDecodeError, KeyError) as error:
        raise InputError(f"task.pretrained={given}: no run there ({workdir / 'config.json'})") from error
    differing = [name for name in sorted(own | its) if own.get(name) != its.get(name)]
    differing = [name for name in differing if name.split(".")[-1] not in MAY_DIFFER]
    if differing:
        listed = ", ".join(f"model.{name} is {its.get(name)!r} there and {own.get(name)!r} here" for name in differing)
        raise InputError(f"task.pretrained={given}: another model: {listed}")
    wanted = model["max_length"] or config.data.length
    if model["absolute_positions"] and wanted != positions:
        raise InputError(f"model.max_length={wanted}: task.pretrained={given} has {positions} absolute positions")
    return workdir


def start_from_pretrained(config: ConfigDict) -> Callable[[Any], Any]:
    """From fresh parameters to those of the run that the config starts from, as far as it has them."""
    workdir = pretrained_run(config)
    trained, step = pretrained.read(workdir)
    print(f"starts from {workdir}, step {step}")
    return functools.partial(pretrained.start_from, trained=trained, workdir=workdir)
