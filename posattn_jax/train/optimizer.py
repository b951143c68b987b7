"""The optimiser of a run."""

import functools

import jax
import optax


def adam(
    learning_rate: optax.ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    clip_norm: float = 0.0,
) -> optax.GradientTransformation:
    """Adam as Alfons 2022 uses it; with decoupled weight decay and clipping by the global norm where they are not 0.

    Weight decay leaves out biases and norms, whatever has fewer than two axes, and spans.
    """
    steps = [optax.clip_by_global_norm(clip_norm)] if clip_norm else []
    if weight_decay:
        mask = functools.partial(jax.tree_util.tree_map_with_path, _decays)
        steps.append(optax.adamw(learning_rate, b1, b2, eps, weight_decay=weight_decay, mask=mask))
    else:
        steps.append(optax.adam(learning_rate, b1, b2, eps))
    return optax.chain(*steps)


def _decays(path: tuple, array: jax.Array) -> bool:
    names = [getattr(key, "key", None) for key in path]
    return array.ndim > 1 and names[-1] != "bias" and "span" not in names
