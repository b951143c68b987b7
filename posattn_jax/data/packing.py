"""Several examples in a row of a batch, as many as fit: segment ids tell them apart, and little is padding."""

import collections
import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from posattn_jax.data.batches import Batch, Kept, Source

Sizes = Mapping[str, np.ndarray]  # [n], of the examples in tokens, by the name of the segment ids of each side


class Packable(Source, Kept, Protocol):
    """A source whose examples can share rows."""

    @property
    def sizes(self) -> Sizes: ...
    def rows(self, groups: Sequence[Sequence[int]], length: int) -> Batch: ...  # each the examples of these numbers


@dataclasses.dataclass(frozen=True)
class Packed:
    """A source whose examples are rows of several of another's, which are the same in every epoch.

    Attributes:
      source: of the examples.
      groups: of each row the numbers of its examples; every example is in one row.
      length: of a row, in tokens of each side.
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
        """On average."""
        return len(self.source) / len(self)

    def keep(self, workdir: pathlib.Path) -> None:
        """What the source keeps."""
        self.source.keep(workdir)

    def batch(self, ids: np.ndarray) -> Batch:
        """The rows with these numbers; a negative one gives a row of padding.

        Beside what the source has "segment_ids" [b t] of each side, int32: 1, 2, ... for the examples of a row, which
        follow each other, and 0 for the padding after them.
        """
        groups = [self.groups[i] if i >= 0 else [] for i in ids]
        batch = self.source.rows(groups, self.length)
        for name, sizes in self.source.sizes.items():
            segments = [[np.full(sizes[i], number) for number, i in enumerate(group, 1)] for group in groups]
            batch[name] = joined(segments, self.length)
        return batch


def joined(rows: Sequence[Sequence[np.ndarray]], length: int, padding: int = 0) -> np.ndarray:
    """[b length], int32: each row's parts one after the other, then padding."""
    found = np.full((len(rows), length), padding, np.int32)
    for row, parts in zip(found, rows, strict=True):
        start = 0
        for part in parts:
            row[start : start + len(part)] = part
            start += len(part)
    return found


def padding_share(sizes: Sizes, num_rows: int, length: int) -> float:
    """The share of the places of so many rows, which have all examples of these sizes, that hold no token."""
    return 1 - sum(int(np.sum(side)) for side in sizes.values()) / (len(sizes) * num_rows * length)


def pack(sizes: Sizes, length: int, seed: int) -> list[list[int]]:
    """Rows of a length on each side, as the numbers of their examples: the largest first, where they leave least room.

    This is "best fit decreasing". Which examples of one size share a row is drawn from the seed. No example is longer
    than a row.
    """
    of_each = np.stack(list(sizes.values()), 1)  # [n d]
    kinds, which = np.unique(of_each, axis=0, return_inverse=True)
    order = np.random.default_rng(seed).permutation(len(of_each))
    order = order[np.argsort(which.ravel()[order], kind="stable")]
    members = np.split(order, np.cumsum(np.bincount(which.ravel()))[:-1])

    empty = (length,) * len(sizes)
    by_room = collections.defaultdict(list, {empty: [[] for _ in of_each]})  # rows by what is free on each side
    number = np.zeros([free + 1 for free in empty], int)  # of these rows
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
