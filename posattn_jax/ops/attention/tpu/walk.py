"""The place of a fused TPU kernel in its launch, and the tiles that it walks over."""

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.experimental import pallas as pl

from posattn_jax.ops.attention.tpu.strips import FRAME


@dataclasses.dataclass(frozen=True)
class Place:
    """The place of a kernel in its launch: group of heads; plane, strip and chunk of queries; and the offset of keys.

    A kernel computes the heads of its group one after another: `head`, which is number `member` of the group.
    """

    group: Any
    query: tuple[Any, Any, Any]
    offset: tuple[Any, Any, Any]
    head: Any = None
    member: Any = 0

    @property
    def key(self) -> tuple[Any, Any, Any]:
        """The plane, strip and chunk of the keys, which may lie outside the grid."""
        return tuple(q + o for q, o in zip(self.query, self.offset, strict=True))


class Bounds:
    """The reach of spans, from `numbers`: the largest in planes, strips and chunks; then each head's half-span."""

    def __init__(self, numbers):
        self.numbers = numbers
        self.size = numbers.shape[0] if hasattr(numbers, "shape") else len(numbers)
        self.reach = [numbers[axis] for axis in range(FRAME)]

    def half(self, head):
        """The half-span of a head, in the frame. If all heads share one, `numbers` holds it once."""
        first = FRAME if self.size == 2 * FRAME else FRAME + FRAME * head
        return [self.numbers[first + axis] for axis in range(FRAME)]


class Met(NamedTuple):
    """Two tiles that meet: where they begin in their strips, and from where on their queries and keys are new."""

    query: Any
    key: Any
    first_query: Any = 0
    first_key: Any = 0


class Walk(NamedTuple):
    """Tiles of `size` positions, one after another, from `first` to `end`; none begins after `latest`."""

    first: Any
    latest: Any
    size: int
    step: int
    end: Any

    @property
    def count(self):
        return over(jnp.maximum(self.end - self.first, 0) + self.size - 1, self.size)

    def at(self, k):
        """The position where tile k begins, and the position from which on it is new."""
        first = self.first + k * self.size
        return pl.multiple_of(jnp.minimum(first, self.latest), self.step), first


def over(x, power):
    """x // power, rounded down, for a power of two."""
    return jnp.right_shift(x, power.bit_length() - 1)
