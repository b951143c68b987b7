"""Vmaps runs that differ only in their seed into one program. Their arrays get a leading axis, one entry per seed."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posattn_jax.data.pipeline.batches import Source


@dataclasses.dataclass(frozen=True)
class SeedMap:
    """Stacks the arrays of several runs, and splits them again. For a single run it adds no axis and no vmap.

    Attributes:
      size: the number of runs.
    """

    size: int = 1

    def map(self, function: Callable, in_axes: Any = 0) -> Callable:
        """Maps a function of one run over all runs. Arguments with None in `in_axes` are the same for all."""
        return function if self.size == 1 else jax.vmap(function, in_axes)

    def stack(self, trees: Sequence[Any]) -> Any:
        """Stacks one tree per run into a single tree, of numpy arrays or of jax arrays as given."""
        if self.size == 1:
            return trees[0]
        return jax.tree.map(lambda *xs: (np if isinstance(xs[0], np.ndarray) else jnp).stack(xs), *trees)

    def split(self, tree: Any) -> list[Any]:
        """The inverse of `stack`."""
        if self.size == 1:
            return [tree]
        return [jax.tree.map(lambda x, i=i: x[i], tree) for i in range(self.size)]


ALONE = SeedMap()


@dataclasses.dataclass(frozen=True)
class SeedData:
    """The seed and the examples of a run: what differs between runs of one config.

    Attributes:
      seed: the seed of the initialisation, of dropout and of the order of the data.
      train_source, validation_source: the examples. The seed may have decided how they were split.
    """

    seed: int
    train_source: Source
    validation_source: Source
