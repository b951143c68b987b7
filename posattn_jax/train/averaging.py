"""The average of several checkpoints' parameters."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from posattn_jax.train.checkpoint import Checkpoints


def average(checkpoints: Checkpoints, steps: Sequence[int]) -> Any:
    """The mean of the parameters of these steps, summed in float64, in the dtype that they have."""
    total, dtypes = None, None
    for step in steps:
        params = jax.device_get(checkpoints.read_params(step))
        dtypes = jax.tree.map(lambda array: array.dtype, params)
        wide = jax.tree.map(lambda array: np.asarray(array, np.float64), params)
        total = wide if total is None else jax.tree.map(np.add, total, wide)
    return jax.tree.map(lambda array, dtype: (array / len(steps)).astype(dtype), total, dtypes)
