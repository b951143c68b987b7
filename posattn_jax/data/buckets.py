"""Batches of about as many tokens: sentences of similar length together, padded to one of a few lengths."""

import functools
import itertools
from collections.abc import Sequence
from typing import Literal

import grain
import numpy as np

from posattn_jax.system.errors import InputError

ENDLESS = 2**40  # updates

BatchUnit = Literal["target_tokens", "places"]


def check_buckets(buckets: Sequence[int]) -> None:
    """InputError where these are no ascending lengths that hold a piece and the end of a sentence."""
    if not buckets or buckets[0] < 2 or any(a >= b for a, b in itertools.pairwise(buckets)):
        raise InputError(f"data.buckets={tuple(buckets)}: expected ascending lengths, the first at least 2")


def padded_length(length: int, buckets: Sequence[int]) -> int:
    """The smallest bucket that holds a length; above the last one, its next multiple."""
    fitting = (bucket for bucket in buckets if bucket >= length)
    return next(fitting, -(-length // buckets[-1]) * buckets[-1])


class BucketOrder:
    """The order in which a run meets examples of several lengths: every epoch has each of them once.

    An update of a bucket, of length l and with m target tokens an example on average, has as many rows as
      steps * multiple * round(batch_tokens / (m multiple))    unit "target_tokens", as Schmidt 2023 counts
      steps * multiple * floor(batch_tokens / (l multiple))    unit "places": no batch takes more memory
    Where a bucket's examples run out, its last update is filled with rows without example. Their id is -1 - (the number
    of the bucket): a process whose share is such rows alone then pads to the length that the others have.

    Args:
      lengths: [n] of the examples, none above the last bucket.
      target_lengths: [n] of what is predicted, which an epoch's speed counts too.
      buckets: the lengths that batches are padded to, ascending.
      batch_tokens: of a micro-batch.
      accumulation_steps: the micro-batches of an update.
      row_multiple: what the rows of a micro-batch are a multiple of, so that as many devices can share it.
      seed: of all epochs' permutations.
      unit: what `batch_tokens` are: tokens of the target, or places of one side, padding included.

    Raises:
      InputError: the least rows of the last bucket are more than a micro-batch, or there is no example.
    """

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
        self.rows = accumulation_steps * row_multiple * share  # [buckets] of an update
        self._num_updates = np.array([-(-len(own) // rows) for own, rows in zip(self._members, self.rows, strict=True)])
        # Updates are asked for one after the other: those of two epochs only where one ends.
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
        """The share of an epoch's places, of both sides and rows without example included, that hold no token."""
        places = 2 * np.sum(self._num_updates * self.rows * self.buckets)
        return float(1 - (np.sum(source_lengths) + np.sum(target_lengths)) / places)

    def dataset(self) -> grain.MapDataset:
        """The ids of update 0, 1, ..., without end."""

        def ids(update: int) -> np.ndarray:
            epoch, step = divmod(int(update), self.steps_per_epoch)
            return self._epoch(epoch)[step]

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
