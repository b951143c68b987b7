"""The optimiser of a run."""

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

    Weight decay leaves out biases, norms and spans: whatever has fewer than two axes.
    """
    steps = [optax.clip_by_global_norm(clip_norm)] if clip_norm else []
    if weight_decay:
        mask = lambda params: jax.tree.map(lambda array: array.ndim > 1, params)
        steps.append(optax.adamw(learning_rate, b1, b2, eps, weight_decay=weight_decay, mask=mask))
    else:
        steps.append(optax.adam(learning_rate, b1, b2, eps))
    return optax.chain(*steps)
