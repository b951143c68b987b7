"""From a config's `model` to the model of a task."""

import pathlib
from typing import Any

from ml_collections import ConfigDict

from posattn_jax.axes import Sizes
from posattn_jax.build.names import name_of
from posattn_jax.build.parts import build
from posattn_jax.system.errors import InputError


def check_version(config: Any, workdir: pathlib.Path) -> None:
    """InputError for the config of a run that was written before models were parts."""
    if "kind" not in config.get("model", {}):
        raise InputError(f"--workdir={workdir}: its config.json is of an earlier version, whose models had no kind")


def build_model(config: ConfigDict, kinds: tuple[type, ...], **known: Any) -> Any:
    """The model, of one of the kinds that the task takes; for `known` see `build`."""
    check_kind(config, kinds)
    return build(config.model, "model", **known)


def check_kind(config: ConfigDict, kinds: tuple[type, ...]) -> None:
    """InputError where the model is of none of these kinds."""
    if config.model.kind not in [name_of(kind) for kind in kinds]:
        expected = " or ".join(kind.__name__ for kind in kinds)
        raise InputError(f'model.kind="{config.model.kind}": expected {expected} with task="{config.task}"')


def table_shapes(grid_shape: Sizes) -> dict[str, Sizes]:
    """What parts with a table a place, or a pair of places, are told of the grid that attention meets."""
    return dict.fromkeys(("grid_shape", "query_shape", "key_shape"), grid_shape)
