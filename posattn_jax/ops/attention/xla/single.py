"""Attention by "single": one example after the other, by another implementation. A toy."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from posattn_jax.axes import Query
from posattn_jax.ops.attention.problem import Problem


def single_attention(problem: Problem, otherwise: Callable) -> tuple[Query, None]:
    """Outputs [b t h d], each example's by the attention `otherwise`."""

    def outputs(example):
        own = jax.tree.map(
            lambda x, axes: x[example : example + 1] if axes.startswith("b") else x, problem, problem.axes
        )
        return otherwise(own)[0]

    return jnp.concatenate([outputs(example) for example in range(len(problem.query))]), None
