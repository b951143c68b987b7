"""Durations with units, and the learning rate over a run."""

import dataclasses
import math

import jax.numpy as jnp
import optax

from posattn_jax.system.errors import InputError


def to_steps(name: str, steps: int, epochs: float | int, steps_per_epoch: int) -> int:
    """The steps of a duration in steps or, where `steps` is 0, in epochs; InputError where it is negative."""
    if steps < 0 or epochs < 0:
        raise InputError(f"{name}_steps={steps}, {name}_epochs={epochs}: expected 0 or more")
    return steps or math.ceil(epochs * steps_per_epoch)


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The learning rate at each step: a linear warm-up from 0 to a peak, and what follows.

    Attributes:
      warmup_steps: the updates of the warm-up; 0: see `warmup_epochs`.
      warmup_epochs: its epochs.
    """

    warmup_steps: int = 0
    warmup_epochs: float = 0.0

    def __call__(self, peak: float, total_steps: int, steps_per_epoch: int) -> optax.Schedule:
        """The rate of a run of so many updates, of which an epoch has `steps_per_epoch`."""
        warmup = to_steps("optimizer.schedule.warmup", self.warmup_steps, self.warmup_epochs, steps_per_epoch)
        after = self.after(peak, warmup, max(total_steps - warmup, 1))
        if warmup == 0:
            return after
        return optax.join_schedules([optax.linear_schedule(0.0, peak, warmup), after], [warmup])

    def after(self, peak: float, warmup: int, steps: int) -> optax.Schedule:
        """The rate after a warm-up, for so many steps."""
        raise NotImplementedError


class Constant(Schedule):
    """The peak."""

    def after(self, peak, warmup, steps):
        return optax.constant_schedule(peak)


class Cosine(Schedule):
    """Half a cosine, down to 0 at the end of the run."""

    def after(self, peak, warmup, steps):
        return optax.cosine_decay_schedule(peak, steps)


class Linear(Schedule):
    """A line, down to 0 at the end of the run."""

    def after(self, peak, warmup, steps):
        return optax.linear_schedule(peak, 0.0, steps)


class InverseSqrt(Schedule):
    """peak sqrt(warmup / step): Vaswani's, whose peak is scale / sqrt(c warmup)."""

    def after(self, peak, warmup, steps):
        if warmup == 0:
            raise InputError("optimizer.schedule: InverseSqrt needs a warm-up")
        return lambda step: peak * jnp.sqrt(warmup / (step + warmup))


ENDLESS = (Constant, InverseSqrt)  # they do not depend on how long the run is
