"""The order of a run's examples. It follows from the seed, is split over processes, and can be resumed."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from posattn_jax.data.pipeline.buckets import ENDLESS, BucketOrder
from posattn_jax.system.errors import InputError

if TYPE_CHECKING:
    import grain

Batch = dict[str, np.ndarray]


@runtime_checkable
class Source(Protocol):
    """Examples, read in batches by their numbers. `knows` has values for fields of the model and of the task."""

    @property
    def knows(self) -> dict[str, Any]: ...
    def __len__(self) -> int: ...

    def batch(self, ids: np.ndarray) -> Batch: ...


@runtime_checkable
class Saved(Protocol):
    """A source that saves something in the run folder, such as a tokenizer or the names of classes."""

    def save(self, workdir: pathlib.Path) -> None: ...


@runtime_checkable
class Resident(Source, Protocol):
    """A source whose examples can be stored on the devices, where batches are made of them."""

    @property
    def num_bytes(self) -> int: ...  # the size of the table
    def table(self) -> dict[str, np.ndarray]: ...  # all examples, [n, ...]
    def read(self, rows: dict[str, Any]) -> dict[str, Any]: ...  # the batch of some rows of the table, traced or not


class Tabulated:
    """Makes a `Resident` source of one whose batches depend on the ids alone: its table is the batch of all of them."""

    @property
    def num_bytes(self: Any) -> int:
        """The size of `table`."""
        return len(self) * sum(array.nbytes for array in self.batch(np.arange(min(len(self), 1))).values())

    def table(self: Any) -> Batch:
        """All examples."""
        ids = np.arange(len(self))
        parts = [self.batch(ids[start : start + 1000]) for start in range(0, max(len(ids), 1), 1000)]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def read(self, rows: dict[str, Any]) -> dict[str, Any]:
        """The rows themselves."""
        return rows


@runtime_checkable
class Ordered(Source, Protocol):
    """A source with examples of several sizes. Their sizes decide which are in one update, so it has its own order."""

    @property
    def row_multiple(self) -> int: ...
    def order(self, batch_size: int, accumulation_steps: int, seed: int) -> BucketOrder: ...
    def about(self, batch_size: int, accumulation_steps: int, seed: int) -> str: ...  # a description


@runtime_checkable
class Sharing(Source, Protocol):
    """A source whose items are rows that several examples share."""

    @property
    def examples_per_row(self) -> float: ...


@dataclasses.dataclass(frozen=True)
class EpochOrder:
    """The same number of examples in every update, and a new permutation in every epoch.

    Examples that do not fill the last update of an epoch are left out. If items are rows that several examples share,
    the examples of an update are an average.
    """

    version: ClassVar[int] = 2  # of the order; a checkpoint of version 1 has no version

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
        """The examples of an update, on average."""
        return self.update_size * self.examples_per_row

    def dataset(self) -> "grain.MapDataset":
        """The ids of update 0, 1, ..., without end. Raises InputError if an update is larger than the data."""
        number, size = self.num_examples, self.update_size
        if not 0 < size <= number:
            given = f"train.batch_size x train.accumulation_steps is {size}"
            raise InputError(f"{given}: expected 1 to {number}, as many as there are for training")

        @functools.lru_cache(maxsize=2)  # drawn at once: to shuffle each id alone takes most of a host's time
        def drawn(epoch: int) -> np.ndarray:
            return np.random.default_rng((self.seed, epoch)).permutation(number)

        def ids(update: int) -> np.ndarray:
            epoch, step = divmod(int(update), self.steps_per_epoch)
            return drawn(epoch)[step * size : (step + 1) * size]

        import grain  # a second or two, and a config is read without it

        return grain.MapDataset.range(ENDLESS).map(ids)


def order_of(source: Source, batch_size: int, accumulation_steps: int, seed: int) -> "EpochOrder | BucketOrder":
    """The order in which a run reads the examples of a source."""
    if isinstance(source, Ordered):
        return source.order(batch_size, accumulation_steps, seed)
    each = source.examples_per_row if isinstance(source, Sharing) else 1.0
    return EpochOrder(len(source), batch_size * accumulation_steps, seed, each)


@dataclasses.dataclass(frozen=True)
class Share:
    """The part of every batch that one process reads.

    Attributes:
      shards: the numbers of the shards that it reads, ascending.
      num_shards: the number of shards of a batch, which are in order. The processes together read all of 0, 1, ...,
        num_shards - 1. Only processes whose devices have a copy of a shard read it.
    """

    shards: tuple[int, ...] = (0,)
    num_shards: int = 1

    def of(self, batch: np.ndarray) -> np.ndarray:
        """The rows of a batch [n, ...] that the process reads. `num_shards` must divide n."""
        cut = batch.reshape(self.num_shards, -1, *batch.shape[1:])
        return cut[list(self.shards)].reshape(-1, *batch.shape[1:])


WHOLE = Share()


def training_batches(
    read: Callable[[np.ndarray], Batch],
    order: "grain.MapDataset",
    num_micro_batches: int = 1,
    share: Share = WHOLE,
    reads_ahead: bool = True,
) -> "grain.DatasetIterator":
    """Reads batches in the given order: this process's shares of the micro-batches of an update, concatenated.

    The iterator has get_state and set_state for the position, which is the same in all processes and does not depend on
    their number, nor on `reads_ahead`. With that, a thread reads the next batches. If these are only ids, it costs more
    time than it saves.
    """

    def own(ids: np.ndarray) -> np.ndarray:
        cut = np.asarray(ids).reshape(num_micro_batches, share.num_shards, -1)
        return cut[:, list(share.shards)].reshape(-1)

    import grain

    options = grain.ReadOptions(num_threads=int(reads_ahead), prefetch_buffer_size=4 if reads_ahead else 0)
    return iter(order.map(lambda ids: read(own(ids))).to_iter_dataset(options))


def evaluation_batches(source: Source, batch_size: int, share: Share = WHOLE) -> Iterator[Batch]:
    """Reads every example once, in order: this process's share. "weights" [b] is 0 for padding of the last batch."""
    for start in range(0, len(source), batch_size):
        ids = start + np.arange(batch_size)
        batch = source.batch(np.minimum(ids, len(source) - 1))  # all shards: the shape depends on every example
        batch["weights"] = (ids < len(source)).astype(np.float32)
        yield {name: share.of(array) for name, array in batch.items()}
