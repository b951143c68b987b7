"""Sequences of token ids as BERT meets them: [CLS] first [SEP] second [SEP], then padding."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from posattn_jax.data.packing import joined
from posattn_jax.data.tokenizer import SPECIALS, Specials, Tokenizer, keep

Ids = np.ndarray
Metric = Literal["matthews", "accuracy", "accuracy_f1", "correlation"]


def check_length(length: int) -> None:
    """ValueError where a sequence of this length has no room for two sentences."""
    if length < 5:
        raise ValueError(f"length={length}: expected at least 5, for [CLS] first [SEP] second [SEP]")


def known(tokenizer: Tokenizer, length: int) -> dict[str, Any]:
    """What sources of sequences know: see `batches.Source`."""
    sizes = {"input_shape": (length,), "max_length": length, "vocabulary_size": tokenizer.vocabulary_size}
    specials = tokenizer.specials
    return sizes | {"num_special": tokenizer.num_special, "mask_id": specials.mask, "pad_id": specials.pad}


def tell_what_is_cut(parts: Mapping[str, Any], what: str) -> None:
    """Prints of sources with `num_cut` how many examples are too long."""
    for name, part in parts.items():
        if num_cut := part.num_cut:
            print(f"{name}: {num_cut:,} of {len(part):,} {what} are cut to data.length={part.length} tokens")


def room(length: int, num_parts: int | np.ndarray) -> int | np.ndarray:
    """The tokens that sequences of this length have for one part, or two, beside the special ones."""
    return length - 1 - num_parts


def cut(parts: Sequence[Ids], length: int) -> list[Ids]:
    """One part, or two, made to fit into a sequence: tokens are taken from the end of the longer."""
    free = int(room(length, len(parts)))
    if len(parts) == 1:
        return [parts[0][:free]]
    first, second = parts
    for_first = max(free // 2, free - len(second))  # of an odd number the second has one more
    for_second = max(free - free // 2, free - len(first))
    return [first[:for_first], second[:for_second]]


def laid_out(parts: Sequence[Ids], length: int, specials: Specials = SPECIALS) -> tuple[Ids, Ids]:
    """An example of one part or two, cut to `length`: its tokens, and their segments.

    Segments are 0, and 1 in the second part and at its [SEP].
    """
    pieces = [np.append(part, specials.sep) for part in cut(parts, length)]
    segments = np.repeat(np.arange(len(pieces)), [len(piece) for piece in pieces])
    return np.concatenate([[specials.cls], *pieces]), np.append(0, segments)


def lay_out(
    rows: Sequence[Sequence[Sequence[Ids]]], length: int, specials: Specials = SPECIALS
) -> dict[str, np.ndarray]:
    """{"tokens" [b t], "segments" [b t]}, both int32: the examples of each row, one after the other, and padding."""
    sides = [[laid_out(parts, length, specials) for parts in row] for row in rows]
    tokens, segments = ([[example[i] for example in row] for row in sides] for i in range(2))
    return {"tokens": joined(tokens, length, specials.pad), "segments": joined(segments, length)}


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
      names: of the labels, by number; (): a number is to be told.
      metric: what is told is judged by.
      num_parts: how many sentences an example has; 0: one or two.
    """

    examples: Sequence[Sequence[np.ndarray]]
    targets: np.ndarray
    groups: np.ndarray
    length: int
    tokenizer: Tokenizer
    num_skipped: int = 0
    num_ids: int = 0
    names: tuple[str, ...] = ()
    metric: Metric = "accuracy"
    num_parts: int = 0

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def knows(self) -> dict[str, Any]:
        """See `batches.Source`."""
        own = {"num_outputs": len(self.names) or 1, "metric": self.metric, "num_examples": self.num_ids}
        return known(self.tokenizer, self.length) | own

    @property
    def num_cut(self) -> int:
        """How many are longer than a sequence, and are cut."""
        return sum(bool(sum(map(len, parts)) > room(self.length, len(parts))) for parts in self.examples)

    def select(self, kept: np.ndarray | slice) -> "Sentences":
        """Those with these numbers, in this order."""
        examples = [self.examples[i] for i in np.arange(len(self))[kept]]
        return dataclasses.replace(self, examples=examples, targets=self.targets[kept], groups=self.groups[kept])

    def keep(self, workdir: pathlib.Path) -> None:
        """Saves the tokenizer in the run folder."""
        keep(self.tokenizer, workdir)

    def batch(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        """{"tokens", "segments" [b t], "targets", "groups", "ids" [b]} of the examples with these numbers."""
        own = {"targets": self.targets[ids], "groups": self.groups[ids], "ids": np.asarray(ids, np.int32)}
        return lay_out([[self.examples[each]] for each in ids], self.length, self.tokenizer.specials) | own
