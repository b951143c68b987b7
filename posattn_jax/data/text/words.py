"""The sentences of a text as token ids on disk, written once as a stream. It is known where words begin."""

import dataclasses
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

import numpy as np

from posattn_jax.data.text import lines, sequences, text_files
from posattn_jax.data.text.corpus import Corpus
from posattn_jax.data.tokenizers import tokenizer
from posattn_jax.data.tokenizers.tokenizer import Tokenizer
from posattn_jax.system import checksums
from posattn_jax.system.doing import doing
from posattn_jax.system.errors import InputError

LEAST = 3  # different words before the last: with fewer, every order may be within one swap


@dataclasses.dataclass(frozen=True)
class WordSequences(sequences.TokenSequences):
    """Sentences, one per sequence, and the word to which each token belongs.

    Attributes:
      ids: all token ids, one sentence after the other.
      starts: [sentences + 1] where each sentence begins in `ids`.
      numbers: [n] the sentences that are examples.
      length: t, the length of a sequence.
      tokenizer: the tokenizer of the ids.
      num_parts: see `sequences.Sentences`.
    """

    ids: np.ndarray
    starts: np.ndarray
    numbers: np.ndarray
    length: int
    tokenizer: Tokenizer

    num_parts: ClassVar[int] = 1

    def __len__(self) -> int:
        return len(self.numbers)

    def select(self, kept: np.ndarray | slice) -> "WordSequences":
        """The examples with these numbers, in this order."""
        return dataclasses.replace(self, numbers=self.numbers[kept])

    @property
    def num_cut(self) -> int:
        """The number of sentences that are longer than a sequence, and are cut."""
        sizes = self.starts[self.numbers + 1] - self.starts[self.numbers]
        return int(np.sum(sizes > sequences.room(self.length, 1)))

    def batch(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        """{"tokens", "segments", "words" [b t], "ids" [b]}, all int32, for the examples with these numbers.

        Words are numbered from 1, and all pieces of a word have its number. [CLS] has 0. Tokens after the last word
        have the number of that word.
        """
        rows = [[[self.ids[self.starts[i] : self.starts[i + 1]]]] for i in self.numbers[ids].tolist()]
        laid_out = sequences.lay_out(rows, self.length, self.tokenizer.specials)
        words = np.cumsum(self.tokenizer.begins_word[laid_out["tokens"]], axis=1, dtype=np.int32)
        return laid_out | {"words": words, "ids": np.asarray(ids, np.int32)}


@dataclasses.dataclass(frozen=True)
class Words(Corpus):
    """Text as sentences, one per line. For the fields see `Corpus`.

    A word is text between white space. The tokenizer of a BERT also separates punctuation: each mark is a word. A
    sentence is left out if, cut to `length`, it has fewer than three different words before the last word.
    """

    name: ClassVar[str] = "words"
    examples: ClassVar[str] = "sentences"

    def read(self, files: Sequence[pathlib.Path], subwords: Tokenizer, cache: pathlib.Path) -> WordSequences:
        """The sentences of text files, tokenised unless they are in the cache. Prints how many are left out.

        Raises:
          InputError: all sentences are left out.
        """
        room, begins = int(sequences.room(self.length, 1)), subwords.begins_word
        num_lines = 0

        def long_enough(encoded: Iterable[tuple[str, np.ndarray]]) -> Iterator[np.ndarray]:
            nonlocal num_lines
            for line, ids in encoded:
                num_lines += bool(line)
                if num_different(ids[:room], begins) >= LEAST:
                    yield ids

        def make(temporary: pathlib.Path) -> None:
            with doing(f"tokenising {len(files)} files", after=0.0):
                lines.write(long_enough(lines.encoded(text_files.lines(files), subwords)), subwords, temporary)
            np.save(temporary / "num_lines.npy", num_lines)

        folder = cache / f"words-{text_files.fingerprint(files, lines.VERSION, subwords.sha256, room)[:16]}"
        checksums.keep_folder(folder, make)
        ids, starts = lines.read(folder, subwords)
        num_kept, num_read = len(starts) - 1, int(np.load(folder / "num_lines.npy", allow_pickle=False))
        why = f"have fewer than {LEAST} different words before the last"
        if not num_kept:
            raise InputError(f"{', '.join(map(str, files))}: all {num_read:,} sentences {why}")
        if num_kept < num_read:
            print(f"{num_read - num_kept:,} of {num_read:,} sentences {why}: they are left out")
        return WordSequences(ids, starts, np.arange(num_kept), self.length, subwords)

    def empty(self, workdir: pathlib.Path) -> WordSequences:
        nothing = np.zeros(0, np.int64)
        return WordSequences(nothing, np.zeros(1, np.int64), nothing, self.length, tokenizer.of_run(workdir))


def num_different(ids: np.ndarray, begins_word: np.ndarray) -> int:
    """The number of different words before the last word. `begins_word` is that of the tokenizer."""
    words = np.split(ids, np.flatnonzero(begins_word[ids])[1:])
    return len({word.tobytes() for word in words[:-1]})
