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

    Weight decay leaves out biases, u and v among them, and norms, whatever has fewer than two axes, and spans.
    """
    steps = [optax.clip_by_global_norm(clip_norm)] if clip_norm else []
    if weight_decay:
        mask = functools.partial(jax.tree_util.tree_map_with_path, _decays)
        steps.append(optax.adamw(learning_rate, b1, b2, eps, weight_decay=weight_decay, mask=mask))
    else:
        steps.append(optax.adam(learning_rate, b1, b2, eps))
    return optax.chain(*steps)


def _decays(path: tuple, array: jax.Array) -> bool:
    names = [str(getattr(key, "key", "")) for key in path]
    is_added = names[-1] in ("scale", "u", "v") or names[-1].split("_")[0] == "bias"  # also where layers are stacked
    return array.ndim > 1 and not is_added and "span" not in names
