"""Durations in steps or epochs, and schedules of the learning rate."""

import dataclasses
import math

import jax.numpy as jnp
import optax

from posattn_jax.system.errors import InputError


def to_steps(name: str, steps: int, epochs: float | int, steps_per_epoch: int) -> int:
    """The steps of a duration given in steps or, if `steps` is 0, in epochs. Raises InputError if it is negative."""
    if steps < 0 or epochs < 0:
        raise InputError(f"{name}_steps={steps}, {name}_epochs={epochs}: expected 0 or more")
    return steps or math.ceil(round(epochs * steps_per_epoch, 6))  # .07 * 100 is a little more than 7


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The learning rate at each step: a linear warm-up from 0 to a peak, and then the rate of the subclass.

    Attributes:
      warmup_steps: the updates of the warm-up; 0: see `warmup_epochs`.
      warmup_epochs: the epochs of the warm-up.
    """

    warmup_steps: int = 0
    warmup_epochs: float = 0.0

    def __call__(self, peak: float, total_steps: int, steps_per_epoch: int) -> optax.Schedule:
        """The learning rate of a run of `total_steps` updates, as a function of the step."""
        warmup = to_steps("optimizer.schedule.warmup", self.warmup_steps, self.warmup_epochs, steps_per_epoch)
        after = self.after(peak, warmup, max(total_steps - warmup, 1))
        if warmup == 0:
            return after
        return optax.join_schedules([optax.linear_schedule(0.0, peak, warmup), after], [warmup])

    def after(self, peak: float, warmup: int, steps: int) -> optax.Schedule:
        """The learning rate in the `steps` steps after a warm-up of `warmup` steps."""
        raise NotImplementedError


class Constant(Schedule):
    """Stays at the peak."""

    def after(self, peak, warmup, steps):
        return optax.constant_schedule(peak)


class Cosine(Schedule):
    """Falls from the peak to 0 at the end of the run, as half a cosine."""

    def after(self, peak, warmup, steps):
        return optax.cosine_decay_schedule(peak, steps)


class Linear(Schedule):
    """Falls linearly from the peak to 0 at the end of the run."""

    def after(self, peak, warmup, steps):
        return optax.linear_schedule(peak, 0.0, steps)


class InverseSqrt(Schedule):
    """peak sqrt(warmup / step), as in Vaswani 2017, whose peak is scale / sqrt(c warmup)."""

    def after(self, peak, warmup, steps):
        if warmup == 0:
            raise InputError("optimizer.schedule: InverseSqrt needs a warm-up")
        return lambda step: peak * jnp.sqrt(warmup / (step + warmup))


ENDLESS = (Constant, InverseSqrt)  # they do not depend on how long the run is
