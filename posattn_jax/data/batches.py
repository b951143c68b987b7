"""The order in which a run meets its examples: from the seed, shared out over processes, resumable."""

import pathlib
from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import grain
import numpy as np

from posattn_jax.errors import InputError

Batch = dict[str, np.ndarray]


@runtime_checkable
class Source(Protocol):
    """Examples by number, in batches."""

    def __len__(self) -> int: ...

    def batch(self, ids: np.ndarray) -> Batch: ...


@runtime_checkable
class Kept(Protocol):
    """A source of which a run keeps something: what its model's numbers mean."""

    def keep(self, workdir: pathlib.Path) -> None: ...


@runtime_checkable
class Order(Protocol):
    """The ids of the examples of update 0, 1, ..., and how many updates and examples an epoch has."""

    @property
    def steps_per_epoch(self) -> int: ...
    @property
    def examples_per_step(self) -> float: ...
    def dataset(self, process_index: int = 0, process_count: int = 1) -> grain.MapDataset: ...


@runtime_checkable
class Ordered(Source, Protocol):
    """Examples of several sizes, which decide what is together in an update: they have an order of their own."""

    @property
    def row_multiple(self) -> int: ...
    def order(self, batch_size: int, accumulation_steps: int, seed: int) -> Order: ...


class EpochOrder:
    """Every update as many examples: see `epoch_order`."""

    def __init__(self, num_examples: int, examples_per_step: int, seed: int):
        self._arguments = num_examples, examples_per_step, seed
        self.steps_per_epoch = max(num_examples // examples_per_step, 1)
        self.examples_per_step = float(examples_per_step)

    def dataset(self, process_index: int = 0, process_count: int = 1) -> grain.MapDataset:
        """The ids of every update."""
        return epoch_order(*self._arguments, process_index, process_count)


def order_of(source: Source, batch_size: int, accumulation_steps: int, seed: int) -> Order:
    """The order in which a run meets a source."""
    if isinstance(source, Ordered):
        return source.order(batch_size, accumulation_steps, seed)
    return EpochOrder(len(source), batch_size * accumulation_steps, seed)


def epoch_order(
    num_examples: int, batch_size: int, seed: int, process_index: int = 0, process_count: int = 1
) -> grain.MapDataset:
    """The ids of batch 0, 1, ...: every epoch a new permutation, whose incomplete last batch is left out.

    Each process takes every `process_count`-th id of a batch: together they have each batch exactly once, whatever
    their number.
    """
    if not 0 < batch_size <= num_examples:
        raise InputError(f"a batch of {batch_size} cannot be drawn from {num_examples} training examples")
    whole = num_examples // batch_size * batch_size
    ids = grain.MapDataset.range(num_examples).seed(seed).shuffle()[:whole]
    ids = ids[process_index::process_count]
    return ids.batch(batch_size // process_count, drop_remainder=True).repeat()


def training_batches(source: Source, order: grain.MapDataset) -> grain.DatasetIterator:
    """Batches in that order; the iterator's get_state and set_state hold the position. One thread reads ahead."""
    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=4)
    return iter(order.map(lambda ids: source.batch(np.asarray(ids))).to_iter_dataset(options))


def evaluation_batches(
    source: Source, batch_size: int, process_index: int = 0, process_count: int = 1
) -> Iterator[Batch]:
    """Every example once, in order; "weights" [b] is 0 for the padding of the last batch."""
    local = batch_size // process_count
    own = slice(process_index * local, (process_index + 1) * local)
    for start in range(0, len(source), batch_size):
        ids = start + np.arange(batch_size)
        batch = source.batch(np.minimum(ids, len(source) - 1))  # whole: its shape depends on every example
        batch["weights"] = (ids < len(source)).astype(np.float32)
        yield {name: array[own] for name, array in batch.items()}
