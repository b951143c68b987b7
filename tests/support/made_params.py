"""Parameters for tests that ask nothing of an initialisation, which takes longer to compile than what they test."""

import jax
import jax.numpy as jnp
import numpy as np

from posattn_jax.train.step import init_state

SPANS = ("sigma", "cholesky", "precision")


def made_params(init, deviation=0.3):
    """Of the shapes and dtypes that `init()` would have: drawn with NumPy, norms' scales about 1, spans as they begin.

    Args:
      init: makes a tree of parameters; it is traced, and of it only what the spans begin with is computed.
      deviation: of the normal draws.
    """
    shapes, rng = jax.eval_shape(init), np.random.default_rng(0)
    leaves = jax.tree_util.tree_leaves_with_path(shapes)
    spans = [path for path, _ in leaves if path[-1].key in SPANS]
    begun = iter(jax.jit(lambda: _at(init(), spans))() if spans else ())

    def draw(path, shape):
        if path[-1].key in SPANS:
            return next(begun)
        mean = 1.0 if path[-1].key == "scale" else 0.0
        return jnp.asarray(rng.normal(mean, deviation, shape.shape), shape.dtype)

    return jax.tree_util.tree_map_with_path(draw, shapes)


def made_state(task, optimizer):
    """A run's state before its first update, whose parameters are drawn likewise."""
    shapes = jax.eval_shape(lambda: init_state(task, optimizer, jax.random.key(0)))
    state = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    params = made_params(lambda: task.init(jax.random.key(0)))
    return state.replace(params=params, rng=jax.random.key_data(jax.random.key(0)))


def _at(tree, paths):
    return [leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree) if path in paths]
