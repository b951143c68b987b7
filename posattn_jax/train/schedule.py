"""Durations with units, and the learning rate over a run."""

import math
from typing import Literal

import jax.numpy as jnp
import optax

from posattn_jax.system.errors import InputError


def to_steps(name: str, steps: int, epochs: float | int, steps_per_epoch: int) -> int:
    """The number of steps of a duration given in steps or, where `steps` is 0, in epochs.

    Raises:
      InputError: a negative duration.
    """
    if steps < 0 or epochs < 0:
        raise InputError(f"{name}_steps={steps}, {name}_epochs={epochs}: expected 0 or more")
    return steps or math.ceil(epochs * steps_per_epoch)


def learning_rate(
    kind: Literal["constant", "cosine", "linear", "inverse_sqrt"], peak: float, total_steps: int, warmup_steps: int = 0
) -> optax.Schedule:
    """The learning rate at each step: a linear warm-up from 0, then constant, or a decay.

    A cosine or a line goes to 0; "inverse_sqrt" is peak sqrt(warmup / step), Vaswani's, with a peak of
    scale / sqrt(c warmup).
    """
    decay_steps = max(total_steps - warmup_steps, 1)
    match kind:
        case "constant":
            main = optax.constant_schedule(peak)
        case "cosine":
            main = optax.cosine_decay_schedule(peak, decay_steps)
        case "linear":
            main = optax.linear_schedule(peak, 0.0, decay_steps)
        case "inverse_sqrt":
            if warmup_steps == 0:
                raise InputError('optimizer.schedule="inverse_sqrt": expected a warm-up')
            main = lambda step: peak * jnp.sqrt(warmup_steps / (step + warmup_steps))
        case _:
            raise InputError(f'optimizer.schedule="{kind}": expected "constant", "cosine", "linear" or "inverse_sqrt"')
    if warmup_steps == 0:
        return main
    return optax.join_schedules([optax.linear_schedule(0.0, peak, warmup_steps), main], [warmup_steps])
