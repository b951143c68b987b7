"""Parameters of an earlier run: of its best epoch, averaged, or as the start of another run."""

import contextlib
import pathlib
from collections.abc import Sequence
from typing import Any

import flax.traverse_util
import jax
import numpy as np

from posattn_jax.system.errors import InputError
from posattn_jax.train.checkpoint import Checkpoints

PARTS = ("encoder", "pooler")  # what is taken over: heads are of one task


def read(workdir: pathlib.Path) -> tuple[Any, int]:
    """The parameters of a run's best epoch, and its step; InputError where it has no checkpoint."""
    with contextlib.closing(Checkpoints(workdir, read_only=True)) as checkpoints:
        step = checkpoints.best_step()
        if step is None:
            raise InputError(f"{workdir}: the run has no checkpoint of a finished epoch")
        return checkpoints.read_params(step), step


def average(checkpoints: Checkpoints, steps: Sequence[int]) -> Any:
    """The mean of the parameters of these steps, summed in float64, in the dtype that they have."""
    total, dtypes = None, None
    for step in steps:
        params = jax.device_get(checkpoints.read_params(step))
        dtypes = jax.tree.map(lambda array: array.dtype, params)
        wide = jax.tree.map(lambda array: np.asarray(array, np.float64), params)
        total = wide if total is None else jax.tree.map(np.add, total, wide)
    return jax.tree.map(lambda array, dtype: (array / len(steps)).astype(dtype), total, dtypes)


def start_from(params: Any, trained: Any, workdir: pathlib.Path) -> Any:
    """`params`, fresh or their shapes, with the values of `trained` in the parts that both have.

    InputError where the encoder of that run, whose folder is `workdir`, has not the same parameters.
    """
    fresh, found = (flax.traverse_util.flatten_dict(tree) for tree in (params, trained))
    taken = {}
    for path, array in fresh.items():
        if path[0] not in PARTS or (path[0] != "encoder" and path[0] not in trained):
            continue
        if path not in found or found[path].shape != array.shape:
            its = found[path].shape if path in found else "not there"
            raise InputError(
                f"task.pretrained={workdir}: {'/'.join(path)} is {its}, and has the shape {array.shape} in this model"
            )
        taken[path] = np.asarray(found[path], array.dtype)
    more = [path for path in found if path[0] == "encoder" and path not in fresh]
    if more:
        raise InputError(f"task.pretrained={workdir}: has {'/'.join(more[0])}, and this model has not")
    return flax.traverse_util.unflatten_dict(fresh | taken)
