"""Parallel text: two files whose lines are translations of each other. Their token ids are written to disk once."""

import dataclasses
import functools
import itertools
import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from posattn_jax.data.pipeline import prepared
from posattn_jax.data.pipeline.buckets import BatchUnit, BucketOrder, check_buckets, padded_length
from posattn_jax.data.pipeline.packing import Packed, joined
from posattn_jax.data.text import text_files
from posattn_jax.data.text.lines import Side, tokenised
from posattn_jax.data.tokenizers.tokenizer import BEGIN, END, PAD, Tokenizer, save
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import broken_link, write_json

SOURCE_FOLDER, RATIO_FILE = "source", "length_ratio.json"  # in a run folder

Malformed = Literal["refuse", "skip"]


@dataclasses.dataclass(frozen=True)
class ParallelText:
    """Sentences and their translations. A side of an example is its tokens and END, and its length includes END.

    Attributes:
      source_ids: all ids of the source, one line after the other.
      source_starts: [lines + 1] where each line begins in `source_ids`. An empty line has no id, not even END.
      target_ids, target_starts: the same for the target.
      numbers: [n] the lines that are examples, from 0.
      buckets: the lengths to which batches are padded, ascending.
      tokenizer: the tokenizer of the target.
      source_tokenizer: the tokenizer of the source; the same object if the vocabulary is joint.
      row_multiple: the number that divides the rows of a training batch.
      batch_unit: the unit of the batch size: see `BucketOrder`.
      known_ratio: gamma, if it is known already.
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
        """The examples with these numbers, in this order."""
        return dataclasses.replace(self, numbers=self.numbers[numbers])

    def by_length(self) -> "ParallelText":
        """The examples from the shortest to the longest. Batches in this order have few shapes."""
        return self.select(np.argsort(self.lengths, kind="stable"))

    def within_limit(self) -> "ParallelText":
        """The examples whose sides both fit into the last bucket. This limit is for training only."""
        return self.select(np.flatnonzero(self.lengths <= self.buckets[-1]))

    def within_ratio(self, most: float) -> "ParallelText":
        """The examples in which no side has more than `most` times the tokens of the other, not counting END."""
        sizes = np.stack([self.source_lengths, self.target_lengths]) - 1
        return self.select(np.flatnonzero(sizes.max(axis=0) <= most * sizes.min(axis=0)))

    @functools.cached_property
    def source_lengths(self) -> np.ndarray:
        """[n] the lengths of the sources."""
        return np.diff(self.source_starts)[self.numbers]

    @functools.cached_property
    def target_lengths(self) -> np.ndarray:
        """[n] the lengths of the targets."""
        return np.diff(self.target_starts)[self.numbers]

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """[n] the lengths of the longer sides."""
        return np.maximum(self.source_lengths, self.target_lengths)

    @property
    def sizes(self) -> dict[str, np.ndarray]:
        """See `packing.Packable`."""
        return {"source_segment_ids": self.source_lengths, "target_segment_ids": self.target_lengths}

    @property
    def length_ratio(self) -> float:
        """gamma = mean over the examples of  source length / target length; or `known_ratio`."""
        return self.known_ratio or float(np.mean(self.source_lengths / self.target_lengths))

    @property
    def num_too_long(self) -> int:
        """The number of examples that do not fit into the last bucket."""
        return int(np.sum(self.lengths > self.buckets[-1]))

    @property
    def skipped(self) -> np.ndarray:
        """The lines, from 0, that were left out because only one side is empty."""
        return np.flatnonzero((np.diff(self.source_starts) > 0) != (np.diff(self.target_starts) > 0))

    @property
    def knows(self) -> dict[str, Any]:
        """See `batches.Source`."""
        return known(self.source_tokenizer, self.tokenizer, self.length_ratio, self.buckets)

    def order(self, batch_size: int, accumulation_steps: int, seed: int) -> BucketOrder:
        """The order of training, in batches of `batch_size` tokens: see `BucketOrder`."""
        lengths, sizes = (self.lengths, self.target_lengths), (batch_size, accumulation_steps, self.row_multiple)
        return BucketOrder(*lengths, self.buckets, *sizes, seed, self.batch_unit)

    def about(self, batch_size: int, accumulation_steps: int, seed: int) -> str:
        """A description of an epoch."""
        order = self.order(batch_size, accumulation_steps, seed)
        padding = order.padding_share(self.source_lengths, self.target_lengths)
        tokens = f"{order.examples_per_step:,.0f} target tokens each"
        return f"{len(self):,} pairs, {order.steps_per_epoch:,} updates an epoch, {tokens}, {padding:.1%} padding"

    def save(self, workdir: pathlib.Path) -> None:
        """Saves in the run folder what translation needs to know of this text: its tokenizers and gamma."""
        save(self.tokenizer, workdir)
        if self.source_tokenizer is not self.tokenizer:
            save(self.source_tokenizer, workdir / SOURCE_FOLDER)
        write_json(workdir / RATIO_FILE, {"length_ratio": self.length_ratio})

    def batch(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        """{"source", "target": [b l]}, int32, for the examples with these numbers.

        l is the smallest bucket that is long enough for all of them; above the last bucket, the next multiple of it. A
        number -1 - k gives a row of PAD, and then l is at least bucket k.
        """
        needed = [padded_length(int(self.lengths[i]), self.buckets) if i >= 0 else self.buckets[-1 - i] for i in ids]
        return self.rows([[i] if i >= 0 else [] for i in ids.tolist()], max(needed))

    def rows(self, groups: Sequence[Sequence[int]], length: int) -> dict[str, np.ndarray]:
        """{"source", "target": [b length]}, int32. Each row has all examples of a group."""
        sides = {"source": (self.source_ids, self.source_starts), "target": (self.target_ids, self.target_starts)}
        lines = [[self.numbers[i] for i in group] for group in groups]
        return {
            name: joined([[ids[starts[line] : starts[line + 1]] for line in row] for row in lines], length)
            for name, (ids, starts) in sides.items()
        }


@dataclasses.dataclass(frozen=True)
class PackedText(Packed):
    """Parallel text in which several sentences share a row, and so do their translations: see `Packed`."""

    source: ParallelText

    @property
    def row_multiple(self) -> int:
        """See `ParallelText`."""
        return self.source.row_multiple

    def order(self, batch_size: int, accumulation_steps: int, seed: int) -> BucketOrder:
        """The order of training, in batches of `batch_size` tokens, all of one shape: see `BucketOrder`."""
        targets = [self.source.target_lengths[group].sum() for group in self.groups]
        lengths, sizes = np.full(len(self), self.length), (batch_size, accumulation_steps, self.row_multiple)
        return BucketOrder(lengths, np.array(targets), (self.length,), *sizes, seed, self.source.batch_unit)

    def about(self, batch_size: int, accumulation_steps: int, seed: int) -> str:
        """A description of an epoch."""
        sizes, sides = (batch_size, accumulation_steps, seed), self.source.sizes.values()
        order = self.order(*sizes)
        tokens = f"{order.examples_per_step:,.0f} target tokens each"
        rows = f"{len(self.source):,} pairs in {len(self):,} rows, {order.steps_per_epoch:,} updates an epoch, {tokens}"
        padding, alone = (each.padding_share(*sides) for each in (order, self.source.order(*sizes)))
        return f"{rows}, {padding:.1%} padding ({alone:.1%} without data.packed)"


def known(source: Tokenizer, target: Tokenizer, length_ratio: float, buckets: tuple[int, ...]) -> dict[str, Any]:
    """What a source `knows`, which can be found without the text. With a joint vocabulary both tokenizers are one."""
    sizes = {"vocabulary_size": target.vocabulary_size, "length_ratio": length_ratio, "length": min(buckets[-1], 32)}
    sizes |= {"source_vocabulary_size": None if source is target else source.vocabulary_size}
    return sizes | {"begin_id": BEGIN, "end_id": END, "pad_id": PAD}


def ratio_of_run(workdir: pathlib.Path) -> float:
    """gamma, as a run has measured it. Raises InputError if the run folder does not have it."""
    try:
        return float(json.loads((workdir / RATIO_FILE).read_text(encoding="utf-8"))["length_ratio"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{workdir / RATIO_FILE}: no ratio of lengths can be read there ({error})") from error


def of_file(folder: pathlib.Path, part: str, language: str) -> Side:
    """The side of a part in a file PART.LANGUAGE, plain or gzipped. Raises InputError unless there is one of them."""
    paths = _paths(folder, part, language)
    if error := next(filter(None, map(broken_link, paths)), None):
        raise InputError(f"data.dir: {error}")
    there = [path for path in paths if path.is_file()]
    if len(there) != 1:
        names = [path.name for path in paths]
        wrong = f"has {' and '.join(names)}: expected one of them" if there else f"no {' or '.join(names)} there"
        raise InputError(f"data.dir={folder}: {wrong}")
    lines = (line for line, _ in itertools.pairwise(text_files.lines(there)))  # a file's end is not a line
    return Side(str(there[0]), lines, there)


def has_file(folder: pathlib.Path, part: str, language: str) -> bool:
    """Whether there is a file for `of_file`, or a link to nothing in its place."""
    return any(map(os.path.lexists, _paths(folder, part, language)))


def _paths(folder: pathlib.Path, part: str, language: str) -> list[pathlib.Path]:
    return [folder / f"{part}.{language}", folder / f"{part}.{language}.gz"]


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
    """The pairs of lines of two sides, tokenised unless they are in the cache.

    Args:
      source, target: the sides, with equal numbers of lines.
      tokenizers: those of the source and of the target; the same object if the vocabulary is joint.
      buckets: the lengths to which batches are padded, ascending.
      cache: the folder in which the ids of each side are kept.
      malformed: whether to refuse or to skip a line that is empty on one side only. Lines that are empty on both sides
        are always left out.

    Raises:
      InputError: the numbers of lines differ, there is no text, or a line is damaged or refused.
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
