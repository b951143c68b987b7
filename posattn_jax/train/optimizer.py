"""The optimiser of a run."""

import dataclasses
import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import optax

from posattn_jax.ops.precision import float32_or_better
from posattn_jax.train.schedule import Constant, Schedule

# Parameters whose unit is not that of weights, by what matches a name in their path: the widths of spans, the
# frequencies of a SIREN, and rates of decay.
SPAN = r"span"
GROUPS = {"span": SPAN, "omega": r"omega_\d+", "decay": r"log_a"}


@dataclasses.dataclass(frozen=True)
class Adam:
    """Adam as in Alfons 2022, optionally with decoupled weight decay and with clipping by the global norm.

    Weight decay skips biases (u and v are two), norms, parameters with fewer than two axes in a block, and spans.
    Clipping leaves spans alone: the gradient of a sigma of a few hundredths may be as large as that of all weights
    together.

    Attributes:
      learning_rate: the peak learning rate.
      span_learning_rate: the peak rate of learned spans, whose sigma is a fraction of the grid; 0: `learning_rate`.
      terms_learning_rate: the peak rate of attention's terms and values, such as those added to a trained model; 0:
        `learning_rate`.
      b1, b2, eps: see `optax.adam`. Moments are float32 or better, whatever dtype the parameters have.
      weight_decay: each step subtracts the learning rate times this times the parameter; 0: no decay.
      clip_norm: the largest allowed norm of the gradient of all parameters but spans; 0: no clipping.
      clips_spans: whether the gradients of spans are in this norm, and are clipped with the others.
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
    clips_spans: bool = False
    schedule: Schedule = Constant()

    def __post_init__(self) -> None:
        for name in ("learning_rate", "span_learning_rate", "terms_learning_rate", "eps", "weight_decay", "clip_norm"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: expected 0 or more")
        for name in ("b1", "b2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: expected 0 or more, and less than 1")
        for name in ("span_learning_rate", "terms_learning_rate"):
            if getattr(self, name) and not self.learning_rate:
                raise ValueError(f"{name}={getattr(self, name)}: expected 0 where learning_rate is 0")

    def make(self, total_steps: int, steps_per_epoch: int) -> optax.GradientTransformation:
        """The optimiser of a run of `total_steps` updates."""
        rate = self.schedule(self.learning_rate, total_steps, steps_per_epoch)
        steps = [self._clipping()] if self.clip_norm else []
        if self.weight_decay:
            mask = functools.partial(jax.tree_util.tree_map_with_path, _decays)
            steps.append(optax.adamw(rate, self.b1, self.b2, self.eps, weight_decay=self.weight_decay, mask=mask))
        else:
            steps.append(optax.adam(rate, self.b1, self.b2, self.eps))
        own_rates = (self.span_learning_rate, SPAN), (self.terms_learning_rate, r"terms_\w+|values")
        for own_rate, parts in own_rates:
            if own_rate:
                is_of = functools.partial(_is_of, re.compile(parts))
                mask = functools.partial(jax.tree_util.tree_map_with_path, is_of)
                steps.append(optax.masked(optax.scale(own_rate / self.learning_rate), mask))
        return _in_float32(optax.chain(*steps))

    def _clipping(self) -> optax.GradientTransformation:
        """Clips by the norm of what is clipped. It has no state, and the same tree of it for either choice."""
        clip = optax.clip_by_global_norm(self.clip_norm)
        if self.clips_spans:
            return clip

        def update(updates, state, params=None):
            is_span = jax.tree_util.tree_map_with_path(functools.partial(_is_of, re.compile(SPAN)), updates)
            weights = jax.tree.map(lambda g, of_span: jnp.zeros_like(g) if of_span else g, updates, is_span)
            clipped, state = clip.update(weights, state)
            return jax.tree.map(lambda g, c, of_span: g if of_span else c, updates, clipped, is_span), state

        return optax.GradientTransformation(clip.init, update)


def _in_float32(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """The optimiser with moments in float32 or better: in bfloat16, .999 times a moment is rounded to the moment."""

    def wide(tree: Any) -> Any:
        return jax.tree.map(lambda array: array.astype(float32_or_better(array.dtype)), tree)

    def update(updates, state, params=None):
        return optimizer.update(wide(updates), state, wide(params))

    return optax.GradientTransformation(lambda params: optimizer.init(wide(params)), update)


def gradient_norms(gradients: Any) -> dict[str, jax.Array]:
    """The global norm of all gradients, "all"; and those of `GROUPS`, as far as there are any, and of the "rest"."""
    leaves, groups = jax.tree_util.tree_flatten_with_path(gradients)[0], {}
    for path, gradient in leaves:
        found = (name for name, parts in GROUPS.items() if _is_of(re.compile(parts), path, gradient))
        groups.setdefault(next(found, "rest"), []).append(gradient)
    norms = {name: optax.global_norm(of_group) for name, of_group in groups.items()} if len(groups) > 1 else {}
    return {"all": optax.global_norm(gradients)} | norms


def _decays(path: tuple, array: jax.Array) -> bool:
    names = _names(path)
    # By name those that have another axis where layers are stacked.
    is_added = names[-1] in ("scale", "u", "v", "log_a") or "bias" in names[-1].split("_")  # also query_bias, bias_0
    return array.ndim > 1 and not is_added and "span" not in names


def _is_of(parts: re.Pattern[str], path: tuple, _: jax.Array) -> bool:
    """Whether a name in a parameter's path matches the pattern."""
    return any(parts.fullmatch(name) for name in _names(path))


def _names(path: tuple) -> list[str]:
    return [str(getattr(key, "key", "")) for key in path]
