"""What attention is given beside its arrays, and the shape of arrays of pairs."""

import dataclasses
from typing import Any, NamedTuple

from posattn_jax.axes import Array, Float, Sizes
from posattn_jax.ops.encodings import Combine


@dataclasses.dataclass(frozen=True)
class Block:
    """Queries that are only some rows, along the first dimension, of a grid that is cut over devices.

    Attributes:
      rows: how many.
      whole: the grid before it was cut: a span ends with it, and no key stands beyond it.
      start: the row of the keys' grid that the first of them stands on, a number or an array [].
      first: the row of the whole grid that the first row of keys is, likewise; it may lie before the grid.
    """

    rows: int
    whole: tuple[int, ...]
    start: Any
    first: Any


class Factors(NamedTuple):
    """What a relative encoding is made of: E = `relative_sinusoids(..., combine)` times `kernel`, plus any bias.

    Attributes:
      kernel: W [c h d].
      combine: how the sinusoids of several dimensions meet.
    """

    kernel: Float[Array, "c h d"]
    combine: Combine


def check_pairs(name: str, pairs: Array | None, sizes: Sizes) -> None:
    """ValueError unless an array of pairs is [b|1 h|1 t s]."""
    b, h, t, s = sizes
    allowed = ((b, 1), (h, 1), (t,), (s,))
    if pairs is not None and (
        pairs.ndim != 4 or any(size not in some for size, some in zip(pairs.shape, allowed, strict=True))
    ):
        raise ValueError(f"{name} has shape {pairs.shape}: expected ({b} or 1, {h} or 1, {t}, {s})")
