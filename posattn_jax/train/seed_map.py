"""Runs that differ in their seed alone, vmapped into one program: their arrays get a leading axis, an entry a seed."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posattn_jax.data.batches import Source


@dataclasses.dataclass(frozen=True)
class SeedMap:
    """What stacks several runs' arrays and splits them again; a run alone has no such axis, and the program of its own.

    Attributes:
      size: how many runs there are.
    """

    size: int = 1

    def map(self, function: Callable, in_axes: Any = 0) -> Callable:
        """The function of one run as that of all; arguments whose entry in `in_axes` is None are the same for all."""
        return function if self.size == 1 else jax.vmap(function, in_axes)

    def stack(self, trees: Sequence[Any]) -> Any:
        """One tree of each run -> one of all: of numpy arrays, or, traced, of jax's."""
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
    """What runs of one config differ in.

    Attributes:
      seed: of the initialisation, dropout and the order of the data.
      train_source, validation_source: the examples, which the seed may have parted.
    """

    seed: int
    train_source: Source
    validation_source: Source
