"""Packs as many examples into a row of a batch as fit, so that there is little padding. Segment ids separate them."""

import collections
import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from posattn_jax.data.pipeline.batches import Batch, Saved, Source

Sizes = Mapping[str, np.ndarray]  # name of a side's segment ids -> [n] lengths of the examples in tokens


class Packable(Source, Saved, Protocol):
    """A source whose examples can share rows."""

    @property
    def sizes(self) -> Sizes: ...
    def rows(self, groups: Sequence[Sequence[int]], length: int) -> Batch: ...  # a row per group of examples


@dataclasses.dataclass(frozen=True)
class Packed:
    """A source whose items are rows of several examples of another source. The rows are the same in every epoch.

    Attributes:
      source: the source of the examples.
      groups: for each row, the numbers of its examples. Every example is in exactly one row.
      length: the length of a row in tokens, for each side.
    """

    source: Packable
    groups: Sequence[Sequence[int]]
    length: int

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def knows(self) -> dict[str, Any]:
        """See `batches.Source`."""
        return self.source.knows

    @property
    def examples_per_row(self) -> float:
        """The examples of a row, on average."""
        return len(self.source) / len(self)

    def save(self, workdir: pathlib.Path) -> None:
        """Saves what the source saves."""
        self.source.save(workdir)

    def batch(self, ids: np.ndarray) -> Batch:
        """The rows with these numbers. A negative number gives a row of padding.

        Adds to the arrays of the source the segment ids [b t] of each side, int32: 1, 2, ... for the examples of a row,
        which follow each other, and 0 for the padding after them.
        """
        groups = [self.groups[i] if i >= 0 else [] for i in ids]
        batch = self.source.rows(groups, self.length)
        for name, sizes in self.source.sizes.items():
            segments = [[np.full(sizes[i], number) for number, i in enumerate(group, 1)] for group in groups]
            batch[name] = joined(segments, self.length)
        return batch


def joined(rows: Sequence[Sequence[np.ndarray]], length: int, padding: int = 0) -> np.ndarray:
    """[b length], int32: the parts of each row, one after the other, then padding."""
    found = np.full((len(rows), length), padding, np.int32)
    for row, parts in zip(found, rows, strict=True):
        start = 0
        for part in parts:
            row[start : start + len(part)] = part
            start += len(part)
    return found


def padding_share(sizes: Sizes, num_rows: int, length: int) -> float:
    """The share of padding if all examples of these sizes are in `num_rows` rows."""
    return 1 - sum(int(np.sum(side)) for side in sizes.values()) / (len(sizes) * num_rows * length)


def pack(sizes: Sizes, length: int, seed: int) -> list[list[int]]:
    """Packs examples into rows with `length` tokens on each side; returns the numbers of the examples of each row.

    The method is "best fit decreasing": the largest example comes first, and each is put where it leaves the least
    room. The seed decides which of the examples with equal sizes share a row. No example may be longer than a row.
    """
    of_each = np.stack(list(sizes.values()), 1)  # [n d]
    kinds, which = np.unique(of_each, axis=0, return_inverse=True)
    order = np.random.default_rng(seed).permutation(len(of_each))
    order = order[np.argsort(which.ravel()[order], kind="stable")]
    members = np.split(order, np.cumsum(np.bincount(which.ravel()))[:-1])

    empty = (length,) * len(sizes)
    by_room = collections.defaultdict(list, {empty: [[] for _ in of_each]})  # rows by the free tokens on each side
    number = np.zeros([free + 1 for free in empty], int)  # the number of these rows
    number[empty] = len(of_each)
    room = np.indices(number.shape).sum(0)
    for kind in np.argsort(-kinds.sum(1), kind="stable"):
        size, left = kinds[kind], members[kind].tolist()
        fitting = tuple(slice(each, None) for each in size)
        while left:
            least = np.argmin(np.where(number[fitting] > 0, room[fitting], room.size))
            free = size + np.unravel_index(least, number[fitting].shape)
            most = int(np.min(free // size))
            rows = by_room[tuple(free)]
            needed = min(len(rows), -(-len(left) // most))
            number[tuple(free)] -= needed
            for row in [rows.pop() for _ in range(needed)]:
                count = min(most, len(left))
                row += left[-count:]
                del left[-count:]
                after = tuple(free - count * size)
                by_room[after].append(row)
                number[after] += 1
    return [row for rows in by_room.values() for row in rows if row]
