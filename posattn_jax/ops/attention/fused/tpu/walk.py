"""Where in a launch of the fused kernels for TPUs one of them runs, and which tiles it walks over."""

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.experimental import pallas as pl

from posattn_jax.ops.attention.fused.tpu.strips import FRAME


@dataclasses.dataclass(frozen=True)
class Place:
    """Where in the launch a kernel runs: head; the plane, strip and chunk of its queries; how far on its keys are."""

    head: Any
    query: tuple[Any, Any, Any]
    offset: tuple[Any, Any, Any]

    @property
    def key(self) -> tuple[Any, Any, Any]:
        """The keys' chunk, which may lie outside the grid."""
        return tuple(q + o for q, o in zip(self.query, self.offset, strict=True))


class Bounds:
    """How far spans reach, by `numbers`: over planes, strips and chunks, of any head; then in the frame, of each."""

    def __init__(self, numbers):
        self.numbers = numbers
        self.size = numbers.shape[0] if hasattr(numbers, "shape") else len(numbers)
        self.reach = [numbers[axis] for axis in range(FRAME)]

    def half(self, head):
        """The half-span of a head. One that all share stands there once."""
        first = FRAME if self.size == 2 * FRAME else FRAME + FRAME * head
        return [self.numbers[first + axis] for axis in range(FRAME)]


class Met(NamedTuple):
    """Tiles that meet: where in their strips they begin, and from where on there the queries and keys are new."""

    query: Any
    key: Any
    first_query: Any = 0
    first_key: Any = 0


class Walk(NamedTuple):
    """Tiles of `size` positions one after another, from `first` on; none begins after `latest`."""

    first: Any
    latest: Any
    size: int
    step: int
    end: Any

    @property
    def count(self):
        return over(jnp.maximum(self.end - self.first, 0) + self.size - 1, self.size)

    def at(self, k):
        """Where tile k begins, and from where on it is new."""
        first = self.first + k * self.size
        return pl.multiple_of(jnp.minimum(first, self.latest), self.step), first


def over(x, power):
    """x // power, rounded down, for a power of two."""
    return jnp.right_shift(x, power.bit_length() - 1)
