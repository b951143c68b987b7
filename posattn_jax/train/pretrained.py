"""Reads the parameters of an earlier run: of its best epoch, an average, or what another run starts from."""

import contextlib
import pathlib
import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict

from posattn_jax.nn.grafts import Flat, Path
from posattn_jax.nn.terms import renamed
from posattn_jax.system.errors import InputError
from posattn_jax.tasks.task import Task
from posattn_jax.train.checkpoint import Checkpoints


def read(workdir: pathlib.Path) -> tuple[Any, int]:
    """The parameters of a run's best epoch, and its step. Raises InputError if the run has no evaluated checkpoint."""
    with contextlib.closing(Checkpoints(workdir, read_only=True)) as checkpoints:
        step = checkpoints.best_step()
        if step is None:
            raise InputError(f"{workdir}: the run has no checkpoint of a finished epoch")
        return checkpoints.read_params(step), step


def average(checkpoints: Checkpoints, steps: Sequence[int]) -> Any:
    """The mean of the parameters of these steps. It is summed in float64, and returned in their own dtypes."""
    total, dtypes = None, None
    for step in steps:
        params = jax.device_get(checkpoints.read_params(step))
        dtypes = jax.tree.map(lambda array: array.dtype, params)
        wide = jax.tree.map(lambda array: np.asarray(array, np.float64), params)
        total = wide if total is None else jax.tree.map(np.add, total, wide)
    return jax.tree.map(lambda array, dtype: (array / len(steps)).astype(dtype), total, dtypes)


def named(params: Any, task: Task) -> Any:
    """The parameters with the names that the model of a task has now: see `nn.terms.renamed`."""
    names = {name for path in flatten_dict(params) for name in path}
    is_earlier = any(re.fullmatch(r"terms_\d+", name) for name in names)
    return renamed(params, jax.eval_shape(task.init, jax.random.key(0))) if is_earlier else params


def taken_over(shapes: Flat, trained: Flat, keeps_head: bool, start: str) -> dict[Path, np.ndarray]:
    """The parameters of a trained run that a model with the parameters `shapes` takes over.

    A part that the run does not have, such as a pooler, is left out. So is the head unless `keeps_head`.

    Args:
      shapes: the parameters of the model, by their paths; only shapes and dtypes are used.
      trained: the parameters of the run, by their paths.
      keeps_head: whether the head of the run is taken over, because it predicts the same labels.
      start: how the config refers to the run, for messages.

    Raises:
      InputError: in a part that both have, a parameter has different shapes, or exists in one of the two only. Or they
        have no part in common.
    """
    parts = {path[0] for path in shapes} & {path[0] for path in trained}
    parts = {part for part in parts if keeps_head or not part.startswith("head")}
    wrong = [
        f"{'/'.join(path)} is {_shape(trained.get(path))} there and {_shape(shapes.get(path))} here"
        for path in dict.fromkeys((*shapes, *trained))
        if path[0] in parts and _shape(trained.get(path)) != _shape(shapes.get(path))
    ]
    if wrong or not parts:
        raise InputError(f"{start}: another model: {wrong[0] if wrong else 'it has none of these parameters'}")
    return {path: np.asarray(trained[path], array.dtype) for path, array in shapes.items() if path[0] in parts}


def _shape(array: Any) -> tuple[int, ...] | str:
    return "missing" if array is None else tuple(array.shape)
