"""Sequences of token ids as inputs of BERT: [CLS] first [SEP] second [SEP], then padding."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from posattn_jax.data.pipeline.batches import Tabulated
from posattn_jax.data.pipeline.packing import joined
from posattn_jax.data.tokenizers.tokenizer import MASK, SPECIALS, Specials, Tokenizer, save

Ids = np.ndarray
Metric = Literal["matthews", "accuracy", "accuracy_f1", "correlation"]


def check_sizes(length: int, vocabulary_size: int = MASK + 2) -> None:
    """Raises ValueError if a sequence has no room for two sentences, or a vocabulary only special tokens."""
    if length < 5:
        raise ValueError(f"length={length}: expected at least 5, for [CLS] first [SEP] second [SEP]")
    if vocabulary_size <= MASK + 1:
        raise ValueError(f"vocabulary_size={vocabulary_size}: expected more than the special tokens")


def tell_what_is_cut(parts: Mapping[str, Any], what: str) -> None:
    """Prints how many examples of each part are too long, and are cut."""
    for name, part in parts.items():
        if num_cut := part.num_cut:
            print(f"{name}: {num_cut:,} of {len(part):,} {what} are cut to data.length={part.length} tokens")


def room(length: int, num_parts: int | np.ndarray) -> int | np.ndarray:
    """The number of tokens, besides the special ones, in a sequence of this length with one or two parts."""
    return length - 1 - num_parts


def cut(parts: Sequence[Ids], length: int) -> list[Ids]:
    """Cuts one or two parts to fit into a sequence. Tokens are removed from the end of the longer part."""
    free = int(room(length, len(parts)))
    if len(parts) == 1:
        return [parts[0][:free]]
    first, second = parts
    for_first = max(free // 2, free - len(second))  # if `free` is odd, the second part gets one more
    for_second = max(free - free // 2, free - len(first))
    return [first[:for_first], second[:for_second]]


def laid_out(parts: Sequence[Ids], length: int, specials: Specials = SPECIALS) -> tuple[Ids, Ids]:
    """The tokens and the segments of an example of one or two parts, which is cut to `length`.

    Segments are 1 in the second part and at its [SEP], and 0 elsewhere.
    """
    pieces = [np.append(part, specials.sep) for part in cut(parts, length)]
    segments = np.repeat(np.arange(len(pieces)), [len(piece) for piece in pieces])
    return np.concatenate([[specials.cls], *pieces]), np.append(0, segments)


def lay_out(
    rows: Sequence[Sequence[Sequence[Ids]]], length: int, specials: Specials = SPECIALS
) -> dict[str, np.ndarray]:
    """{"tokens", "segments" [b t]}, int32. Each row has its examples, one after the other, and then padding."""
    sides = [[laid_out(parts, length, specials) for parts in row] for row in rows]
    tokens, segments = ([[example[i] for example in row] for row in sides] for i in range(2))
    return {"tokens": joined(tokens, length, specials.pad), "segments": joined(segments, length)}


class TokenSequences(Tabulated):
    """A source of sequences of token ids.

    Attributes:
      length: t, the length of a sequence.
      tokenizer: the tokenizer of the ids.
    """

    length: int
    tokenizer: Tokenizer

    @property
    def knows(self) -> dict[str, Any]:
        """See `batches.Source`."""
        subwords, specials = self.tokenizer, self.tokenizer.specials
        sizes = {"input_shape": (self.length,), "max_length": self.length, "vocabulary_size": subwords.vocabulary_size}
        return sizes | {"num_special": subwords.num_special, "mask_id": specials.mask, "pad_id": specials.pad}

    def save(self, workdir: pathlib.Path) -> None:
        """Saves the tokenizer in the run folder."""
        save(self.tokenizer, workdir)


@dataclasses.dataclass(frozen=True)
class Sentences(TokenSequences):
    """Sentences, or pairs of sentences, as token ids, with their targets.

    Attributes:
      examples: [n] one or two arrays of ids each.
      targets: [n] indices of labels, or scores; 0 if they are not known.
      groups: [n] for each example, the number of the file of its part that it is from.
      length: t, the length of a sequence.
      tokenizer: the tokenizer of the ids.
      num_ids: the number of examples of the largest labelled part; 0: not known.
      names: the names of the labels, in order; (): the target is a number.
      metric: the metric of the predictions.
      num_parts: how many sentences an example has; 0: one or two.
    """

    examples: Sequence[Sequence[np.ndarray]]
    targets: np.ndarray
    groups: np.ndarray
    length: int
    tokenizer: Tokenizer
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
        return super().knows | own

    @property
    def num_cut(self) -> int:
        """The number of examples that are longer than a sequence, and are cut."""
        return sum(bool(sum(map(len, parts)) > room(self.length, len(parts))) for parts in self.examples)

    def select(self, kept: np.ndarray | slice) -> "Sentences":
        """The examples with these numbers, in this order."""
        examples = [self.examples[i] for i in np.arange(len(self))[kept]]
        return dataclasses.replace(self, examples=examples, targets=self.targets[kept], groups=self.groups[kept])

    def batch(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        """{"tokens", "segments" [b t], "targets", "groups", "ids" [b]} for the examples with these numbers."""
        own = {"targets": self.targets[ids], "groups": self.groups[ids], "ids": np.asarray(ids, np.int32)}
        return lay_out([[self.examples[each]] for each in ids], self.length, self.tokenizer.specials) | own
