"""Types of arguments of attention, how arrays are made of them, and the shape check of arrays over pairs."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp

from posattn_jax.axes import Array, Float, Key, SharedKey, Sizes
from posattn_jax.ops.encodings import Combine
from posattn_jax.ops.precision import as_array

FLOATS = ("query", "key", "value", "relative_encoding", "content_bias", "position_bias", "relative_bias", "sigma")
FLOATS += ("bias",)
OTHERS = ("key_mask", "mask", "segment_ids", "query_seq_lengths", "key_value_seq_lengths")


def as_arrays(given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that are arrays, made of what is like one; integers become floats where these are meant."""
    return {name: as_array(given[name], name in FLOATS) for name in (*FLOATS, *OTHERS) if name in given}


@dataclasses.dataclass(frozen=True)
class Block:
    """The queries of one device: some rows, along the first dimension, of a grid that is cut over devices.

    Attributes:
      rows: the number of rows.
      whole: the grid before it was cut. It limits the spans, and no key lies beyond it.
      start: the index, in the keys' grid, of the first row of queries; a number or an array [].
      first: the index, in the whole grid, of the first row of keys; likewise. It is negative before the grid.
    """

    rows: int
    whole: tuple[int, ...]
    start: Any
    first: Any


class Factors(NamedTuple):
    """The factors of a relative encoding: E = `relative_sinusoids(..., combine)` times `kernel`, plus any bias.

    Attributes:
      kernel: W [c h d].
      combine: whether the sinusoids of several dimensions are summed or concatenated.
    """

    kernel: Float[Array, "c h d"]
    combine: Combine


def of_all_heads(features: SharedKey | None, num_heads: int) -> Key | None:
    """Repeats each head h / k times: [b s k d] -> [b s h d]."""
    if features is None or features.shape[2] == num_heads:
        return features
    return jnp.repeat(features, num_heads // features.shape[2], axis=2)


def check_pairs(name: str, pairs: Array | None, sizes: Sizes) -> None:
    """ValueError unless an array of pairs is [b|1 h|1 t s]."""
    b, h, t, s = sizes
    allowed = ((b, 1), (h, 1), (t,), (s,))
    if pairs is not None and (
        pairs.ndim != 4 or any(size not in some for size, some in zip(pairs.shape, allowed, strict=True))
    ):
        raise ValueError(f"{name} has shape {pairs.shape}: expected ({b} or 1, {h} or 1, {t}, {s})")
