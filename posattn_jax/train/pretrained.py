"""Parameters of an earlier run: of its best epoch, averaged, or as the start of another run."""

import contextlib
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from posattn_jax.nn.grafts import Flat, Path
from posattn_jax.system.errors import InputError
from posattn_jax.train.checkpoint import Checkpoints


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


def taken_over(shapes: Flat, trained: Flat, keeps_head: bool, start: str) -> dict[Path, np.ndarray]:
    """The parameters of a run, for a model that has those of `shapes`.

    Not among them are those of parts that the run has not, such as a pooler, and, unless it is kept, of the head.

    Args:
      shapes: of the model's, by their paths.
      trained: of the run.
      keeps_head: whether its head tells the same labels.
      start: what the config calls the run, for messages.

    Raises:
      InputError: a parameter has another shape there, or is there and not here, or here and not there.
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
