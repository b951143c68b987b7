"""The optimiser of a run."""

import dataclasses
import functools
import re

import jax
import optax

from posattn_jax.train.schedule import Constant, Schedule


@dataclasses.dataclass(frozen=True)
class Adam:
    """Adam as in Alfons 2022, optionally with decoupled weight decay and with clipping by the global norm.

    Weight decay skips biases (u and v are two), norms, parameters with fewer than two axes, and spans.

    Attributes:
      learning_rate: the peak learning rate.
      span_learning_rate: the peak rate of learned spans, whose sigma is a fraction of the grid; 0: `learning_rate`.
      terms_learning_rate: the peak rate of attention's terms and values, such as those added to a trained model; 0:
        `learning_rate`.
      b1, b2, eps: see `optax.adam`.
      weight_decay: each step subtracts the learning rate times this times the parameter; 0: no decay.
      clip_norm: the largest allowed norm of the gradient of all parameters; 0: no clipping.
      schedule: the schedule of the learning rate.
    """

    learning_rate: float = 1e-3
    span_learning_rate: float = 0.0
    terms_learning_rate: float = 0.0
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip_norm: float = 0.0
    schedule: Schedule = Constant()

    def __post_init__(self) -> None:
        for name in ("span_learning_rate", "terms_learning_rate"):
            if getattr(self, name) and not self.learning_rate:
                raise ValueError(f"{name}={getattr(self, name)}: expected 0 where learning_rate is 0")

    def make(self, total_steps: int, steps_per_epoch: int) -> optax.GradientTransformation:
        """The optimiser of a run of `total_steps` updates."""
        rate = self.schedule(self.learning_rate, total_steps, steps_per_epoch)
        steps = [optax.clip_by_global_norm(self.clip_norm)] if self.clip_norm else []
        if self.weight_decay:
            mask = functools.partial(jax.tree_util.tree_map_with_path, _decays)
            steps.append(optax.adamw(rate, self.b1, self.b2, self.eps, weight_decay=self.weight_decay, mask=mask))
        else:
            steps.append(optax.adam(rate, self.b1, self.b2, self.eps))
        own_rates = (self.span_learning_rate, r"span"), (self.terms_learning_rate, r"terms_\d+|values")
        for own_rate, parts in own_rates:
            if own_rate:
                is_of = functools.partial(_is_of, re.compile(parts))
                mask = functools.partial(jax.tree_util.tree_map_with_path, is_of)
                steps.append(optax.masked(optax.scale(own_rate / self.learning_rate), mask))
        return optax.chain(*steps)


def _decays(path: tuple, array: jax.Array) -> bool:
    names = _names(path)
    is_added = names[-1] in ("scale", "u", "v") or names[-1].split("_")[0] == "bias"  # also where layers are stacked
    return array.ndim > 1 and not is_added and "span" not in names


def _is_of(parts: re.Pattern[str], path: tuple, _: jax.Array) -> bool:
    """Whether a name in a parameter's path matches the pattern."""
    return any(parts.fullmatch(name) for name in _names(path))


def _names(path: tuple) -> list[str]:
    return [str(getattr(key, "key", "")) for key in path]
