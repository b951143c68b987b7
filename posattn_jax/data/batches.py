"""The order in which a run meets its examples: from the seed, shared out over processes, resumable."""

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
    for start in range(0, len(source), batch_size):
        ids = start + process_index * local + np.arange(local)
        batch = source.batch(np.minimum(ids, len(source) - 1))
        yield batch | {"weights": (ids < len(source)).astype(np.float32)}
