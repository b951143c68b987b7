"""Text as subwords, in pairs of consecutive lines. Its token ids are written to disk once, as a stream."""

import array
import dataclasses
import functools
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from posattn_jax.data.pipeline import packing
from posattn_jax.data.pipeline.checksums import Files
from posattn_jax.data.pipeline.data_set import DataSet, Reading, limited, split
from posattn_jax.data.text import lines, sequences, text_files
from posattn_jax.data.tokenizers import tokenizer
from posattn_jax.data.tokenizers.tokenizer import Tokenizer
from posattn_jax.system import checksums
from posattn_jax.system.doing import doing
from posattn_jax.system.errors import InputError


@dataclasses.dataclass(frozen=True)
class SentencePairs(sequences.TokenSequences):
    """Pairs of consecutive lines of a document, which do not overlap. The last line of a document may be alone.

    Attributes:
      ids: all token ids, one line after the other.
      starts: [lines + 1] where each line begins in `ids`.
      pairs: [n, 2] the first line of each pair, and its number of lines, 1 or 2.
      length: t, the length of a sequence.
      tokenizer: the tokenizer of the ids.
      num_parts: see `sequences.Sentences`.
    """

    ids: np.ndarray
    starts: np.ndarray
    pairs: np.ndarray
    length: int
    tokenizer: Tokenizer

    num_parts: ClassVar[int] = 0

    def __len__(self) -> int:
        return len(self.pairs)

    def select(self, numbers: np.ndarray | slice) -> "SentencePairs":
        """The pairs with these numbers, in this order."""
        return dataclasses.replace(self, pairs=self.pairs[numbers])

    @property
    def lengths(self) -> np.ndarray:
        """[n] the lengths of the pairs with their special tokens, before they are cut."""
        first, num = self.pairs.T
        return self.starts[first + num] - self.starts[first] + self.length - sequences.room(self.length, num)

    @property
    def num_cut(self) -> int:
        """The number of pairs that are longer than a sequence, and are cut."""
        return int(np.sum(self.lengths > self.length))

    @functools.cached_property
    def sizes(self) -> dict[str, np.ndarray]:
        """See `packing.Packable`."""
        return {"segment_ids": np.minimum(self.lengths, self.length)}

    def batch(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        """{"tokens", "segments": [b t], "ids": [b]}, all int32, for the pairs with these numbers."""
        return self.rows([[i] for i in ids.tolist()], self.length)

    def rows(self, groups: Sequence[Sequence[int]], length: int) -> dict[str, np.ndarray]:
        """As `batch`, but each row has all pairs of a group. Its id is the number of the first pair."""
        examples = [[self._lines(i) for i in group] for group in groups]
        ids = np.array([group[0] for group in groups], np.int32)
        return sequences.lay_out(examples, length, self.tokenizer.specials) | {"ids": ids}

    def _lines(self, number: int) -> list[np.ndarray]:
        """The ids of the lines of a pair."""
        first, num = self.pairs[number]
        return [self.ids[self.starts[line] : self.starts[line + 1]] for line in range(first, first + num)]


@dataclasses.dataclass(frozen=True)
class Corpus(DataSet):
    """Text, cut into subwords. `read` makes the examples from its lines.

    The tokenizer is that of the run that this one starts from, or else is trained on the text.

    Attributes:
      dir: a file, or a folder of .txt and .txt.gz files, with one sentence per line and blank lines between documents.
      validation_dir: the same for validation; "": a twentieth of the examples, drawn by the run's seed.
      validation_limit: use only the first so many examples of the validation part; 0: all.
      vocabulary_size: the size of a tokenizer that is trained, including 4 special tokens.
      length: the length of a sequence in tokens.
      examples: what the examples are called in messages.
    """

    dir: str = "data/text"
    validation_dir: str = ""
    validation_limit: int = 0
    vocabulary_size: int = 30_004
    length: int = 128

    examples: ClassVar[str]

    def __post_init__(self):
        sequences.check_sizes(self.length, self.vocabulary_size)

    def read(self, files: Sequence[pathlib.Path], subwords: Tokenizer, cache: pathlib.Path) -> Any:
        """The examples of text files, tokenised unless they are in the cache. Raises InputError if there is none."""
        raise NotImplementedError

    def load(self, reading: Reading) -> dict[str, Any]:
        """See `DataSet` and, for the tokenizer, `of_reading`. There is no test part."""
        files, cache = text_files.find(pathlib.Path(self.dir), "data.dir"), reading.cache
        held_out = text_files.find_held_out(pathlib.Path(self.validation_dir), files) if self.validation_dir else []
        make = functools.partial(tokenizer.of_text, text_files.lines(files), files, self.vocabulary_size, cache)
        of_another = None if reading.pretrained is None else tokenizer.of_start(reading)
        subwords = of_another or tokenizer.of_reading(reading, make)
        train = self.read(files, subwords, cache)
        if self.validation_dir:
            validation = self.read(held_out, subwords, cache)
        else:
            train, validation = split(train, reading.seed, train_share=0.95)
        if not len(train):
            raise InputError(f"data.dir={self.dir}: expected at least 2 {self.examples}, to be split")
        parts = {"train": train, "validation": limited(validation, self.validation_limit)}
        sequences.tell_what_is_cut(parts, self.examples)
        return parts

    def files(self) -> Files:
        return text_files.of_run(self.dir, self.validation_dir)


@dataclasses.dataclass(frozen=True)
class Text(Corpus):
    """Text as pairs of consecutive lines.

    Attributes:
      packed: whether a row of training has as many pairs as fit into `length`, instead of one: see
        `data.pipeline.packing`.
      dir, validation_dir, validation_limit, vocabulary_size, length: see `Corpus`.
    """

    packed: bool = False

    name: ClassVar[str] = "text"
    examples: ClassVar[str] = "pairs of lines"

    def read(self, files: Sequence[pathlib.Path], subwords: Tokenizer, cache: pathlib.Path) -> SentencePairs:
        return of_text(files, subwords, self.length, cache)

    def load(self, reading: Reading) -> dict[str, Any]:
        parts = super().load(reading)
        if not self.packed:
            return parts
        train = parts["train"]
        rows = packing.pack(train.sizes, self.length, reading.seed)
        padding, alone = (packing.padding_share(train.sizes, len(each), self.length) for each in (rows, train))
        padding = f"{padding:.1%} padding ({alone:.1%} without data.packed)"
        print(f"train: {len(train):,} pairs of lines in {len(rows):,} rows, {padding}")
        return parts | {"train": packing.Packed(train, rows, self.length)}

    def empty(self, workdir: pathlib.Path) -> SentencePairs:
        ids, starts, pairs = np.zeros(0, np.int32), np.zeros(1, np.int64), np.zeros((0, 2), np.int64)
        return SentencePairs(ids, starts, pairs, self.length, tokenizer.of_run(workdir))


def of_text(files: Sequence[pathlib.Path], tokenizer: Tokenizer, length: int, cache: pathlib.Path) -> SentencePairs:
    """The pairs of text files, tokenised unless they are in the cache. Raises InputError if there is no line."""

    def make(temporary: pathlib.Path) -> None:
        pairs = array.array("q")
        rows = _paired(lines.encoded(text_files.lines(files), tokenizer), pairs)
        with doing(f"tokenising {len(files)} files", after=0.0):
            lines.write(rows, tokenizer, temporary)
        np.save(temporary / "pairs.npy", np.array(pairs, np.int64).reshape(-1, 2))

    folder = cache / f"corpus-{text_files.fingerprint(files, 'corpus', lines.VERSION, tokenizer.sha256)[:16]}"
    checksums.keep_folder(folder, make)
    pairs = np.load(folder / "pairs.npy", mmap_mode="r", allow_pickle=False)
    if not len(pairs):
        raise InputError(f"{', '.join(map(str, files))}: no line with text")
    return SentencePairs(*lines.read(folder, tokenizer), pairs, length, tokenizer)


def _paired(encoded: Iterable[tuple[str, np.ndarray]], pairs: array.array) -> Iterator[np.ndarray]:
    """Yields the ids of each line that is not empty. Appends each pair's first line and number of lines to `pairs`."""
    number, is_open = 0, False
    for line, ids in encoded:
        if not line:
            is_open = False
        elif len(ids):
            if is_open:
                pairs[-1] = 2
            else:
                pairs.extend((number, 1))
            is_open, number = not is_open, number + 1
            yield ids
