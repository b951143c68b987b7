"""From a config's `model` to the model of a task."""

import pathlib
from typing import Any

from ml_collections import ConfigDict

from posattn_jax.axes import Sizes
from posattn_jax.build.names import name_of, short
from posattn_jax.build.parts import build
from posattn_jax.models.vit import patch_grid
from posattn_jax.system.errors import InputError


def check_version(config: Any, workdir: pathlib.Path) -> None:
    """InputError for the config of a run that was written before all of it were parts."""
    for group in ("data", "task", "model"):
        if not isinstance(config.get(group), dict | ConfigDict) or "kind" not in config[group]:
            raise InputError(f"--workdir={workdir}: its config.json is of an earlier version: {group} has no kind")


def build_model(config: ConfigDict, kinds: tuple[type, ...], **known: Any) -> Any:
    """The model, of one of the kinds that the task takes; for `known` see `build`."""
    check_kind(config, kinds)
    return build(config.model, "model", **known)


def check_kind(config: ConfigDict, kinds: tuple[type, ...]) -> None:
    """InputError where the model is of none of these kinds."""
    if config.model.kind not in [name_of(kind) for kind in kinds]:
        expected = " or ".join(kind.__name__ for kind in kinds)
        raise InputError(f'model.kind="{config.model.kind}": expected {expected} with task {short(config.task.kind)}')


def table_shapes(config: ConfigDict, grid_shape: Sizes) -> dict[str, Sizes]:
    """What parts with a table a place, or a pair of places, are told of the grid that attention meets."""
    model: Any = config.model
    if "patch_shape" in model:
        try:
            grid_shape = patch_grid(grid_shape, tuple(model.patch_shape))
        except ValueError as error:
            raise InputError(f"model.{error}") from error
    elif model.get("max_length"):
        grid_shape = (model.max_length,)
    return dict.fromkeys(("grid_shape", "query_shape", "key_shape"), grid_shape)
