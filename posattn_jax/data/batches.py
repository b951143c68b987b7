"""The order in which a run meets its examples: from the seed, shared out over processes, resumable."""

import dataclasses
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

import grain
import numpy as np

from posattn_jax.data.buckets import BucketOrder
from posattn_jax.system.errors import InputError

Batch = dict[str, np.ndarray]


@runtime_checkable
class Source(Protocol):
    """Examples by number, in batches; and by name the fields of models and tasks that they know."""

    @property
    def knows(self) -> dict[str, Any]: ...
    def __len__(self) -> int: ...

    def batch(self, ids: np.ndarray) -> Batch: ...


@runtime_checkable
class Kept(Protocol):
    """A source of which a run keeps something: what its model's numbers mean."""

    def keep(self, workdir: pathlib.Path) -> None: ...


@runtime_checkable
class Resident(Source, Protocol):
    """A source whose examples may be device-resident, and made into batches there."""

    @property
    def num_bytes(self) -> int: ...  # of the table
    def table(self) -> dict[str, np.ndarray]: ...  # of all examples, [n, ...]
    def read(self, rows: dict[str, Any]) -> dict[str, Any]: ...  # of some rows of the table, traced or not


@runtime_checkable
class Ordered(Source, Protocol):
    """Examples of several sizes, which decide what is together in an update: they have an order of their own."""

    @property
    def row_multiple(self) -> int: ...
    def order(self, batch_size: int, accumulation_steps: int, seed: int) -> BucketOrder: ...
    def about(self, batch_size: int, accumulation_steps: int, seed: int) -> str: ...  # for people


@runtime_checkable
class Sharing(Source, Protocol):
    """Rows that several examples share, by the number of the row."""

    @property
    def examples_per_row(self) -> float: ...


@dataclasses.dataclass(frozen=True)
class EpochOrder:
    """Every update as many examples: every epoch a new permutation, whose incomplete last update is left out.

    Examples may be rows that several share: then those of an update are counted on average.
    """

    num_examples: int
    update_size: int
    seed: int
    examples_per_row: float = 1.0

    @property
    def steps_per_epoch(self) -> int:
        """The updates of an epoch."""
        return max(self.num_examples // self.update_size, 1)

    @property
    def examples_per_step(self) -> float:
        """Of an update."""
        return self.update_size * self.examples_per_row

    def dataset(self) -> grain.MapDataset:
        """The ids of update 0, 1, ...; InputError where an update is larger than the data."""
        number, size = self.num_examples, self.update_size
        if not 0 < size <= number:
            raise InputError(f"a batch of {size} cannot be drawn from {number} training examples")
        ids = grain.MapDataset.range(number).seed(self.seed).shuffle()[: number // size * size]
        return ids.batch(size, drop_remainder=True).repeat()


def order_of(source: Source, batch_size: int, accumulation_steps: int, seed: int) -> "EpochOrder | BucketOrder":
    """The order in which a run meets a source."""
    if isinstance(source, Ordered):
        return source.order(batch_size, accumulation_steps, seed)
    each = source.examples_per_row if isinstance(source, Sharing) else 1.0
    return EpochOrder(len(source), batch_size * accumulation_steps, seed, each)


@dataclasses.dataclass(frozen=True)
class Share:
    """The part of every batch that one process reads.

    Attributes:
      shards: the numbers of its shards, ascending.
      num_shards: that a batch is cut into, in order. All processes' together are 0, 1, ..., num_shards - 1, each of
        them as often as devices hold a copy of it: no example is read for nothing, and none is left out.
    """

    shards: tuple[int, ...] = (0,)
    num_shards: int = 1

    def of(self, batch: np.ndarray) -> np.ndarray:
        """Its rows of a batch [n, ...] whose size num_shards divides."""
        cut = batch.reshape(self.num_shards, -1, *batch.shape[1:])
        return cut[list(self.shards)].reshape(-1, *batch.shape[1:])


WHOLE = Share()


def training_batches(
    read: Callable[[np.ndarray], Batch], order: grain.MapDataset, num_micro_batches: int = 1, share: Share = WHOLE
) -> grain.DatasetIterator:
    """What is read of ids in that order, of each micro-batch this process's share, one after the other.

    The iterator's get_state and set_state hold the position, which is the same in all processes, and whatever their
    number. One thread reads ahead.
    """

    def own(ids: np.ndarray) -> np.ndarray:
        return np.concatenate([share.of(each) for each in np.split(np.asarray(ids), num_micro_batches)])

    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=4)
    return iter(order.map(lambda ids: read(own(ids))).to_iter_dataset(options))


def evaluation_batches(source: Source, batch_size: int, share: Share = WHOLE) -> Iterator[Batch]:
    """This process's share of every example once, in order; "weights" [b] is 0 for the padding of the last batch."""
    for start in range(0, len(source), batch_size):
        ids = start + np.arange(batch_size)
        batch = source.batch(np.minimum(ids, len(source) - 1))  # whole: its shape depends on every example
        batch["weights"] = (ids < len(source)).astype(np.float32)
        yield {name: share.of(array) for name, array in batch.items()}
