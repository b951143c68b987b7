"""Parallel text: two files of which each line translates the other's, as token ids on disk, made once as a stream."""

import dataclasses
import functools
import itertools
import json
import pathlib
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from posattn_jax.data import prepared, text_files
from posattn_jax.data.buckets import BatchUnit, BucketOrder, check_buckets, padded_length
from posattn_jax.data.lines import Side, tokenised
from posattn_jax.data.packing import Packed, joined
from posattn_jax.data.tokenizer import BEGIN, END, PAD, Tokenizer, keep
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import write_json

SOURCE_FOLDER, RATIO_FILE = "source", "length_ratio.json"  # in a run folder

Malformed = Literal["refuse", "skip"]


@dataclasses.dataclass(frozen=True)
class ParallelText:
    """Sentences and their translations. A side is its pieces and END; a length counts END.

    Attributes:
      source_ids: all ids of the source, one line after the other.
      source_starts: [lines + 1] where each line begins in them; an empty one has no id, not even END.
      target_ids, target_starts: likewise.
      numbers: [n] which lines are the examples, from 0.
      buckets: the lengths that batches are padded to, ascending.
      tokenizer: that made the ids of the target.
      source_tokenizer: that made those of the source; joint text has one of both.
      row_multiple: what the rows of a batch of training are a multiple of.
      batch_unit: what its size is: see `BucketOrder`.
      known_ratio: gamma, where it is not to be measured.
    """

    source_ids: np.ndarray
    source_starts: np.ndarray
    target_ids: np.ndarray
    target_starts: np.ndarray
    numbers: np.ndarray
    buckets: tuple[int, ...]
    tokenizer: Tokenizer
    source_tokenizer: Tokenizer
    row_multiple: int = 8
    batch_unit: BatchUnit = "target_tokens"
    known_ratio: float | None = None

    def __len__(self) -> int:
        return len(self.numbers)

    def select(self, numbers: np.ndarray | slice) -> "ParallelText":
        """The examples of these numbers, in this order."""
        return dataclasses.replace(self, numbers=self.numbers[numbers])

    def by_length(self) -> "ParallelText":
        """From the shortest to the longest: batches in this order have few shapes."""
        return self.select(np.argsort(self.lengths, kind="stable"))

    def within_limit(self) -> "ParallelText":
        """Those of which both sides fit into the last bucket: a limit for training only."""
        return self.select(np.flatnonzero(self.lengths <= self.buckets[-1]))

    def within_ratio(self, most: float) -> "ParallelText":
        """Those of which no side has more than `most` times the pieces of the other, END not counted."""
        sizes = np.stack([self.source_lengths, self.target_lengths]) - 1
        return self.select(np.flatnonzero(sizes.max(axis=0) <= most * sizes.min(axis=0)))

    @functools.cached_property
    def source_lengths(self) -> np.ndarray:
        """[n]"""
        return np.diff(self.source_starts)[self.numbers]

    @functools.cached_property
    def target_lengths(self) -> np.ndarray:
        """[n]"""
        return np.diff(self.target_starts)[self.numbers]

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """[n] of the longer side."""
        return np.maximum(self.source_lengths, self.target_lengths)

    @property
    def sizes(self) -> dict[str, np.ndarray]:
        """See `packing.Packable`."""
        return {"source_segment_ids": self.source_lengths, "target_segment_ids": self.target_lengths}

    @property
    def length_ratio(self) -> float:
        """gamma = mean over the examples of  source length / target length; or what a run has measured before."""
        return self.known_ratio or float(np.mean(self.source_lengths / self.target_lengths))

    @property
    def num_too_long(self) -> int:
        """How many do not fit into the last bucket."""
        return int(np.sum(self.lengths > self.buckets[-1]))

    @property
    def num_skipped(self) -> int:
        """The lines of the files that were left out because one side alone is empty."""
        return int(np.sum(np.logical_xor(np.diff(self.source_starts), np.diff(self.target_starts))))

    @property
    def knows(self) -> dict[str, Any]:
        """See `batches.Source`."""
        return known(self.source_tokenizer, self.tokenizer, self.length_ratio, self.buckets)

    def order(self, batch_size: int, accumulation_steps: int, seed: int) -> BucketOrder:
        """The order of training, in batches of so many tokens: see `BucketOrder`."""
        lengths, sizes = (self.lengths, self.target_lengths), (batch_size, accumulation_steps, self.row_multiple)
        return BucketOrder(*lengths, self.buckets, *sizes, seed, self.batch_unit)

    def about(self, batch_size: int, accumulation_steps: int, seed: int) -> str:
        """What an epoch is, for people."""
        order = self.order(batch_size, accumulation_steps, seed)
        padding = order.padding_share(self.source_lengths, self.target_lengths)
        tokens = f"{order.examples_per_step:,.0f} target tokens each"
        return f"{len(self):,} pairs, {order.steps_per_epoch:,} updates an epoch, {tokens}, {padding:.1%} padding"

    def keep(self, workdir: pathlib.Path) -> None:
        """Saves in the run folder what translating needs of this text: its tokenizers and gamma."""
        keep(self.tokenizer, workdir)
        if self.source_tokenizer is not self.tokenizer:
            keep(self.source_tokenizer, workdir / SOURCE_FOLDER)
        write_json(workdir / RATIO_FILE, {"length_ratio": self.length_ratio})

    def batch(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        """{"source", "target": [b l]}, int32, of the examples with these numbers.

        l is the smallest bucket that holds them all; above the last one, its next multiple. A number -1 - k gives a row
        of PAD, in a batch at least as long as bucket k.
        """
        needed = [padded_length(int(self.lengths[i]), self.buckets) if i >= 0 else self.buckets[-1 - i] for i in ids]
        return self.rows([[i] if i >= 0 else [] for i in ids.tolist()], max(needed))

    def rows(self, groups: Sequence[Sequence[int]], length: int) -> dict[str, np.ndarray]:
        """{"source", "target": [b length]}, int32, each row of all examples of a group."""
        sides = {"source": (self.source_ids, self.source_starts), "target": (self.target_ids, self.target_starts)}
        lines = [[self.numbers[i] for i in group] for group in groups]
        return {
            name: joined([[ids[starts[line] : starts[line + 1]] for line in row] for row in lines], length)
            for name, (ids, starts) in sides.items()
        }


@dataclasses.dataclass(frozen=True)
class PackedText(Packed):
    """Parallel text of which several sentences share a row, and their translations one: see `Packed`."""

    source: ParallelText

    @property
    def row_multiple(self) -> int:
        """See `ParallelText`."""
        return self.source.row_multiple

    def order(self, batch_size: int, accumulation_steps: int, seed: int) -> BucketOrder:
        """The order of training, in batches of so many tokens, all of one shape: see `BucketOrder`."""
        targets = [self.source.target_lengths[group].sum() for group in self.groups]
        lengths, sizes = np.full(len(self), self.length), (batch_size, accumulation_steps, self.row_multiple)
        return BucketOrder(lengths, np.array(targets), (self.length,), *sizes, seed, self.source.batch_unit)

    def about(self, batch_size: int, accumulation_steps: int, seed: int) -> str:
        """What an epoch is, for people."""
        sizes, sides = (batch_size, accumulation_steps, seed), self.source.sizes.values()
        order = self.order(*sizes)
        tokens = f"{order.examples_per_step:,.0f} target tokens each"
        rows = f"{len(self.source):,} pairs in {len(self):,} rows, {order.steps_per_epoch:,} updates an epoch, {tokens}"
        padding, alone = (each.padding_share(*sides) for each in (order, self.source.order(*sizes)))
        return f"{rows}, {padding:.1%} padding ({alone:.1%} without data.packed)"


def known(source: Tokenizer, target: Tokenizer, length_ratio: float, buckets: tuple[int, ...]) -> dict[str, Any]:
    """What a source `knows`, and what is known of a run without its text; joint text has one tokenizer of both."""
    sizes = {"vocabulary_size": target.vocabulary_size, "length_ratio": length_ratio, "length": min(buckets[-1], 32)}
    sizes |= {"source_vocabulary_size": None if source is target else source.vocabulary_size}
    return sizes | {"begin_id": BEGIN, "end_id": END, "pad_id": PAD}


def ratio_of_run(workdir: pathlib.Path) -> float:
    """gamma, as a run has measured it; InputError where it has not."""
    try:
        return float(json.loads((workdir / RATIO_FILE).read_text(encoding="utf-8"))["length_ratio"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{workdir / RATIO_FILE}: no ratio of lengths can be read there ({error})") from error


def of_file(folder: pathlib.Path, part: str, language: str) -> Side:
    """The side of a part that a file PART.LANGUAGE has, plain or zipped; InputError where there is none."""
    names = (f"{part}.{language}", f"{part}.{language}.gz")
    for path in (folder / name for name in names):
        if path.is_file():
            lines = (line for line, _ in itertools.pairwise(text_files.lines([path])))  # a file's end is no line of it
            return Side(str(path), lines, [path])
    raise InputError(f"data.dir={folder}: no {' or '.join(names)} there")


def of_prepared(folder: pathlib.Path, split: str, language: str) -> Side:
    """A side of a set that tensorflow-datasets has prepared in this folder."""
    lines = prepared.lines(folder, split, language)
    return Side(f"{folder}: {split}.{language}", lines, prepared.files(folder), (split, language))


def of_text(
    source: Side,
    target: Side,
    tokenizers: tuple[Tokenizer, Tokenizer],
    buckets: tuple[int, ...],
    cache: pathlib.Path,
    malformed: Malformed = "refuse",
) -> ParallelText:
    """The pairs of lines of two sides, tokenised if the cache does not have them.

    Args:
      source, target: with as many lines.
      tokenizers: of the source, and of the target; the same where they are joint.
      buckets: the lengths that batches are padded to, ascending.
      cache: where ids are kept, of each side on its own.
      malformed: whether a line that is empty on one side only is refused, or skipped. Lines that are empty on both
        sides are left out.

    Raises:
      InputError: the sides have not as many lines, or no text, or a line that is damaged or refused.
    """
    check_buckets(buckets)
    (source_ids, source_starts), (target_ids, target_starts) = (
        tokenised(side, tokenizer, cache) for side, tokenizer in zip((source, target), tokenizers, strict=True)
    )
    num_source, num_target = len(source_starts) - 1, len(target_starts) - 1
    if num_source != num_target:
        raise InputError(
            f"{source.name} has {num_source} lines, {target.name} has {num_target}: expected as many, each the other's "
            "translation"
        )
    has_source, has_target = np.diff(source_starts) > 0, np.diff(target_starts) > 0
    alone = np.flatnonzero(has_source != has_target)
    if len(alone) and malformed == "refuse":
        empty, full = (target, source) if has_source[alone[0]] else (source, target)
        raise InputError(
            f"{empty.name}: line {alone[0] + 1} is empty, that of {full.name} is not (one of {len(alone)}; "
            'data.malformed="skip" leaves them out)'
        )
    numbers = np.flatnonzero(has_source & has_target)
    if not len(numbers):
        raise InputError(f"{source.name}, {target.name}: no line has text on both sides")
    arrays = source_ids, source_starts, target_ids, target_starts, numbers
    return ParallelText(*arrays, buckets, tokenizers[1], tokenizers[0])
