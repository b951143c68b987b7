"""Batches with similar numbers of tokens. Sentences of similar length are padded to one of a few lengths."""

import functools
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from posattn_jax.system.errors import InputError

if TYPE_CHECKING:
    import grain

ENDLESS = 2**40  # updates

BatchUnit = Literal["target_tokens", "places"]


def check_buckets(buckets: Sequence[int]) -> None:
    """Raises InputError unless the lengths ascend, and have room for a token and the end of a sentence."""
    if not buckets or buckets[0] < 2 or any(a >= b for a, b in itertools.pairwise(buckets)):
        raise InputError(f"data.buckets={tuple(buckets)}: expected ascending lengths, the first at least 2")


def padded_length(length: int, buckets: Sequence[int]) -> int:
    """The smallest bucket that is at least `length`; above the last bucket, the next multiple of it."""
    fitting = (bucket for bucket in buckets if bucket >= length)
    return next(fitting, -(-length // buckets[-1]) * buckets[-1])


class BucketOrder:
    """The order in which a run reads examples of several lengths. Every epoch has each example once.

    For a bucket of length l, whose examples have m target tokens on average, the number of rows of an update is
      steps * multiple * round(batch_tokens / (m multiple))    unit "target_tokens", as Schmidt 2023 counts
      steps * multiple * floor(batch_tokens / (l multiple))    unit "places": at most batch_tokens per micro-batch
    The last update of a bucket is filled up with rows without an example. The id of such a row is -1 - (the number of
    the bucket), so that a process whose share has only such rows pads to the same length as the others.

    Args:
      lengths: [n] the lengths of the examples, none above the last bucket.
      target_lengths: [n] the lengths of the targets, which the speed counts too.
      buckets: the lengths to which batches are padded, ascending.
      batch_tokens: the tokens of a micro-batch.
      accumulation_steps: the micro-batches of an update.
      row_multiple: the number that divides the rows of a micro-batch, so that this many devices can share them.
      seed: the seed of the permutations of all epochs.
      unit: what `batch_tokens` counts: tokens of the target, or places of one side, padding included.

    Raises:
      InputError: a micro-batch is too small for `row_multiple` rows of the last bucket, or there is no example.
    """

    version = 1  # see `batches.EpochOrder`

    def __init__(
        self,
        lengths: np.ndarray,
        target_lengths: np.ndarray,
        buckets: tuple[int, ...],
        batch_tokens: int,
        accumulation_steps: int,
        row_multiple: int,
        seed: int,
        unit: BatchUnit = "target_tokens",
    ):
        check_buckets(buckets)
        if batch_tokens < row_multiple * buckets[-1]:
            raise InputError(
                f"train.batch_size={batch_tokens}: expected at least {row_multiple} times the longest of data.buckets, "
                f"{buckets[-1]}"
            )
        if not len(lengths):
            raise InputError(f"data.buckets={buckets}: no training example fits into the longest")
        if np.max(lengths) > buckets[-1]:
            raise ValueError(f"an example of length {np.max(lengths)} is in none of the buckets {buckets}")
        self.buckets, self.seed = buckets, seed
        self._num_tokens = int(np.sum(target_lengths))
        which = np.searchsorted(buckets, lengths)
        self._members = [np.flatnonzero(which == number) for number in range(len(buckets))]
        share = batch_tokens // (row_multiple * np.array(buckets))
        if unit == "target_tokens":
            means = [np.mean(target_lengths[own]) if len(own) else buckets[-1] for own in self._members]
            share = np.rint(batch_tokens / (row_multiple * np.array(means))).astype(int)
        self.rows = accumulation_steps * row_multiple * share  # [buckets] the rows of an update
        self._num_updates = np.array([-(-len(own) // rows) for own, rows in zip(self._members, self.rows, strict=True)])
        # Updates are read in order, so at most two epochs are needed at a time, where one ends.
        self._epoch = functools.lru_cache(maxsize=2)(self._draw)

    @property
    def steps_per_epoch(self) -> int:
        """The updates of an epoch."""
        return int(np.sum(self._num_updates))

    @property
    def examples_per_step(self) -> float:
        """The target tokens of an update, on average."""
        return self._num_tokens / self.steps_per_epoch

    def padding_share(self, source_lengths: np.ndarray, target_lengths: np.ndarray) -> float:
        """The share of padding in an epoch, over the places of both sides, including rows without an example."""
        places = 2 * np.sum(self._num_updates * self.rows * self.buckets)
        return float(1 - (np.sum(source_lengths) + np.sum(target_lengths)) / places)

    def dataset(self) -> "grain.MapDataset":
        """The ids of update 0, 1, ..., without end."""

        def ids(update: int) -> np.ndarray:
            epoch, step = divmod(int(update), self.steps_per_epoch)
            return self._epoch(epoch)[step]

        import grain  # a second or two, and a config is read without it

        return grain.MapDataset.range(ENDLESS).map(ids)

    def _draw(self, epoch: int) -> list[np.ndarray]:
        """The ids of each update of an epoch."""
        rng = np.random.default_rng((self.seed, epoch))
        updates: list[np.ndarray] = []
        for number, (own, rows) in enumerate(zip(self._members, self.rows, strict=True)):
            ids = np.full((self._num_updates[number], rows), -1 - number)
            ids.flat[: len(own)] = rng.permutation(own)
            updates += list(ids)
        return [updates[i] for i in rng.permutation(len(updates))]
