"""Sentences with a tag for every word: from files with columns, such as those of CoNLL and Universal Dependencies."""

import dataclasses
import pathlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from posattn_jax.data.pipeline import user_data
from posattn_jax.data.pipeline.checksums import Files, found_below
from posattn_jax.data.pipeline.data_set import DataSet, Reading, limited, split
from posattn_jax.data.pipeline.packing import joined
from posattn_jax.data.text import sequences
from posattn_jax.data.tokenizers import tokenizer
from posattn_jax.data.tokenizers.tokenizer import Tokenizer
from posattn_jax.system.errors import InputError

SUFFIXES = (".txt", ".conll", ".conllu")
DOCUMENT = "-DOCSTART-"  # between the documents of CoNLL-2003
NO_WORD = re.compile(r"\d+[-.]\d+")  # the numbers "3-4" and "5.1" of Universal Dependencies


class TaggedSentence(NamedTuple):
    """The words of a sentence, their tags, and the place of the sentence, for errors."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    where: str = ""


@dataclasses.dataclass(frozen=True)
class TaggedSequences(sequences.TokenSequences):
    """Sentences as token ids, with a tag at the first piece of each word.

    Attributes:
      examples: [n] the ids of a sentence, and for each of them the index of the tag; -1 if it begins no word.
      names: the names of the tags, in order.
      length: t, the length of a sequence.
      tokenizer: the tokenizer of the ids.
      num_parts: see `sequences.Sentences`.
    """

    examples: Sequence[tuple[np.ndarray, np.ndarray]]
    names: tuple[str, ...]
    length: int
    tokenizer: Tokenizer

    num_parts: ClassVar[int] = 1

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def knows(self) -> dict[str, Any]:
        """See `batches.Source`."""
        return super().knows | {"names": self.names}

    @property
    def num_cut(self) -> int:
        """The number of sentences that are longer than a sequence, and are cut."""
        return sum(bool(len(ids) > sequences.room(self.length, 1)) for ids, _ in self.examples)

    def select(self, kept: np.ndarray | slice) -> "TaggedSequences":
        """The examples with these numbers, in this order."""
        return dataclasses.replace(self, examples=[self.examples[i] for i in np.arange(len(self))[kept]])

    def save(self, workdir: pathlib.Path) -> None:
        """Saves the tokenizer, and the names of the tags, in the run folder."""
        super().save(workdir)
        user_data.save(workdir, {"classes": list(self.names)})

    def batch(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        """{"tokens", "segments", "targets" [b t]}, all int32, for the examples with these numbers."""
        chosen = [self.examples[i] for i in ids]
        laid_out = sequences.lay_out([[[each]] for each, _ in chosen], self.length, self.tokenizer.specials)
        room = int(sequences.room(self.length, 1))
        targets = joined([[np.array([-1]), tags[:room]] for _, tags in chosen], self.length, padding=-1)
        return laid_out | {"targets": targets}

    def of(self, given: Iterable[tuple[Sequence[str], Sequence[int]]]) -> "TaggedSequences":
        """The sentences that are given as words and the indices of their tags.

        A word that the tokenizer drops is read as [MASK], so that it keeps its place and has a tag.
        """
        given = list(given)
        distinct = list(dict.fromkeys(word for words, _ in given for word in words))
        nothing = np.array([self.tokenizer.specials.mask], np.int32)
        encoded = self.tokenizer.encode(distinct)
        pieces = {word: ids if len(ids) else nothing for word, ids in zip(distinct, encoded, strict=True)}

        def example(words: Sequence[str], tags: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
            ids = [pieces[word] for word in words]
            marked = [np.append(tag, np.full(len(each) - 1, -1)) for each, tag in zip(ids, tags, strict=True)]
            return np.concatenate(ids), np.concatenate(marked).astype(np.int32)

        return dataclasses.replace(self, examples=[example(*each) for each in given])


@dataclasses.dataclass(frozen=True)
class Tagged(DataSet):
    """Sentences with tags. A subclass reads them.

    The tokenizer is that of the run that this one starts from, or else byte pairs that are trained on the train part.

    Attributes:
      vocabulary_size: the size of a tokenizer that is trained, including 4 special tokens.
      length: the length of a sequence in tokens.
      validation_limit: use only the first so many sentences of the validation part; 0: all.
    """

    vocabulary_size: int = 4096
    length: int = 64
    validation_limit: int = 0

    def __post_init__(self):
        sequences.check_sizes(self.length, self.vocabulary_size)

    def read(self) -> dict[str, list[TaggedSentence]]:
        """The sentences of "train" and, if they exist, of "validation" and "test".

        Raises:
          InputError: there is nothing to train on, or a sentence is malformed.
        """
        raise NotImplementedError

    def load(self, reading: Reading) -> dict[str, TaggedSequences]:
        """See `DataSet`."""
        parts = self.read()
        kept = user_data.saved(reading.workdir)
        tags = (tag for sentence in parts["train"] for tag in sentence.tags)
        names = user_data.names_of(tags, "train", "data.dir") if kept is None else tuple(kept["classes"])
        subwords = tokenizer.of_start(reading)
        if subwords is None:
            lines = (" ".join(sentence.words) for sentence in parts["train"])
            subwords = tokenizer.train(lines, self.vocabulary_size, "bpe")
        sources = {}
        for part, read in parts.items():
            good = self.sift(_indexed(read, names), part)
            sources[part] = TaggedSequences([], names, self.length, subwords).of(good)
            print(f"{part}: {len(good):,} sentences with {len(names)} tags ({user_data.listed(names)})")
        if "validation" not in sources:
            sources["train"], sources["validation"] = split(sources["train"], reading.seed, train_share=0.8)
        if not reading.evaluates:
            sources.pop("test", None)
        sources["validation"] = limited(sources["validation"], self.validation_limit)
        sequences.tell_what_is_cut(sources, "sentences")
        return sources

    def sift(self, read: Iterable[Any], part: str) -> list[Any]:
        """The sentences of a part without the malformed ones. Raises InputError if these must not be skipped."""
        return user_data.sift(read, part, "sentences", "refuse")

    def classes_of(self, workdir: pathlib.Path) -> tuple[str, ...]:
        return tuple(user_data.of_run(workdir)["classes"])

    def empty(self, workdir: pathlib.Path) -> TaggedSequences:
        return TaggedSequences([], self.classes_of(workdir), self.length, tokenizer.of_run(workdir))


@dataclasses.dataclass(frozen=True)
class TaggedFiles(Tagged):
    """A file, or train, val and test in a folder, each .txt, .conll or .conllu: a word a line, blank lines between.

    A line has columns, separated by tabs or else by spaces: word and tag are among them, as in CoNLL-2000 (word,
    part of speech, chunk). In a .conllu file, of Universal Dependencies, comments, words of several tokens ("3-4") and
    words that are not in the text ("5.1") are left out. Without val, the run's seed draws a fifth of the train part.

    Attributes:
      dir: the file or the folder.
      columns: the numbers of the columns of word and tag, from 0, or from -1 for the last; (): the first and the last,
        and in a .conllu file the word and its universal part of speech, 1 and 3.
      malformed: whether to refuse or to skip sentences with a line of another number of columns than the first line of
        the file, or without a word or a tag, and sentences with a tag that the train part does not have.
      vocabulary_size, length, validation_limit: see `Tagged`.
    """

    dir: str = "data/tagged"
    columns: tuple[int, ...] = ()
    malformed: user_data.Malformed = "refuse"

    name: ClassVar[str] = "tagged"

    def __post_init__(self):
        super().__post_init__()
        if len(self.columns) not in (0, 2):
            raise ValueError(f"columns={self.columns}: expected two numbers, of the columns of word and tag, or none")

    def read(self) -> dict[str, list[TaggedSentence]]:
        paths = user_data.find_parts(pathlib.Path(self.dir), SUFFIXES)
        return {part: self.sift(read_columns(path, self.columns), part) for part, path in paths.items()}

    def sift(self, read: Iterable[Any], part: str) -> list[Any]:
        return user_data.sift(read, part, "sentences", self.malformed)

    def files(self) -> Files:
        return found_below(self.dir, lambda: user_data.find_parts(pathlib.Path(self.dir), SUFFIXES).values())


def read_columns(path: pathlib.Path, columns: tuple[int, ...] = ()) -> Iterator[TaggedSentence | InputError]:
    """The sentences of a file with columns, each or its error: see `TaggedFiles`.

    Raises:
      InputError: the file cannot be read, or has not these columns.
    """
    try:
        text = path.read_bytes().decode(errors="surrogateescape").removeprefix("\ufeff")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    is_universal = path.suffix == ".conllu"
    word, tag = columns or ((1, 3) if is_universal else (0, -1))
    width, rows, wrong, first = 0, [], None, 0
    for number, line in enumerate([*text.split("\n"), ""], start=1):
        line = line.rstrip("\r")
        if not line.strip():
            if wrong is not None:
                yield wrong
            elif rows:
                words, tags = zip(*rows, strict=True)
                yield TaggedSentence(words, tags, f"{path}: line {first}")
            rows, wrong = [], None
            continue
        cells = line.split("\t") if "\t" in line else [cell for cell in line.split(" ") if cell]
        if cells[0] == DOCUMENT or (is_universal and (line.startswith("#") or NO_WORD.fullmatch(cells[0]))):
            continue
        if not width:
            width = len(cells)
            if not all(-width <= column < width for column in (word, tag)) or width < 2:
                expected = f"expected the columns {word} and {tag} of word and tag (data.columns)"
                raise InputError(f"{path}: line {number} has {width} columns: {expected}")
        first = number if not rows else first
        if wrong is None and is_universal and not cells[0].isdecimal():
            wrong = InputError(f'{path}: line {number}: "{cells[0]}": expected the number of a word')
        if wrong is None:
            wrong = _wrong(f"{path}: line {number}", cells, width, {"word": word, "tag": tag})
        rows.append((cells[word], cells[tag]) if len(cells) == width else ("", ""))


def _wrong(where: str, cells: list[str], width: int, columns: dict[str, int]) -> InputError | None:
    """The error of a line, if there is one."""
    if len(cells) != width:
        return InputError(f"{where}: {len(cells)} columns, expected {width}")
    for what, column in columns.items():
        if not cells[column].strip():
            return InputError(f"{where}: the {what} is empty")
    try:
        "".join(cells).encode()
    except UnicodeEncodeError:
        return InputError(f"{where}: is no UTF-8")
    return None


def _indexed(
    sentences: Iterable[TaggedSentence], names: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], list[int]] | InputError]:
    """The words and the indices of the tags of each sentence, or an error for a tag that is not known."""
    number_of = user_data.numbering(names)
    for words, tags, where in sentences:
        numbers = [number for tag in tags if (number := number_of(tag)) is not None]
        if len(numbers) == len(tags):
            yield words, numbers
        else:
            unknown = next(tag for tag in tags if number_of(tag) is None)
            yield InputError(f"{where}: {user_data.unknown(unknown, names)}")
