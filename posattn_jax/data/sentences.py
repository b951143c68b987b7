"""Sentences, or pairs of them, of each of which something is to be told."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from posattn_jax.data import sequences
from posattn_jax.data.tokenizer import Tokenizer, keep

Metric = Literal["matthews", "accuracy", "accuracy_f1", "correlation"]


@dataclasses.dataclass(frozen=True)
class Sentences:
    """Sentences, or pairs of them, as token ids, and what is to be told of each.

    Attributes:
      examples: [n] one or two arrays of ids.
      targets: [n] the numbers of labels, or scores; 0 where they are not known.
      groups: [n] from which of a task's files, by number.
      length: t, of a sequence.
      tokenizer: that made the ids.
      num_skipped: the malformed lines that were left out.
      num_ids: as many as the largest labelled part of the task has examples; 0: not known.
      num_labels: how many labels there are; 0: a number is to be told.
      metric: what GLUE judges what is told by.
    """

    examples: Sequence[Sequence[np.ndarray]]
    targets: np.ndarray
    groups: np.ndarray
    length: int
    tokenizer: Tokenizer
    num_skipped: int = 0
    num_ids: int = 0
    num_labels: int = 0
    metric: Metric = "accuracy"

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def knows(self) -> dict[str, Any]:
        """See `batches.Source`."""
        own = {"num_outputs": self.num_labels or 1, "metric": self.metric, "num_examples": self.num_ids}
        return sequences.known(self.tokenizer, self.length) | own

    @property
    def num_cut(self) -> int:
        """How many are longer than a sequence, and are cut."""
        return sum(bool(sum(map(len, parts)) > sequences.room(self.length, len(parts))) for parts in self.examples)

    def first(self, number: int) -> "Sentences":
        """The first so many."""
        kept = slice(number)
        return dataclasses.replace(
            self, examples=self.examples[kept], targets=self.targets[kept], groups=self.groups[kept]
        )

    def keep(self, workdir: pathlib.Path) -> None:
        """Saves the tokenizer in the run folder."""
        keep(self.tokenizer, workdir)

    def batch(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        """{"tokens", "segments" [b t], "targets", "groups", "ids" [b]} of the examples with these numbers."""
        laid_out = sequences.lay_out([self.examples[each] for each in ids], self.length)
        own = {"targets": self.targets[ids], "groups": self.groups[ids], "ids": np.asarray(ids, np.int32)}
        return laid_out | own
