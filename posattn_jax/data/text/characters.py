"""A text as bytes, cut into sequences, for language models of characters."""

import dataclasses
import gzip
import pathlib
import zlib
from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np

from posattn_jax.data.pipeline.batches import Tabulated
from posattn_jax.data.pipeline.checksums import Files
from posattn_jax.data.pipeline.data_set import DataSet, Reading, limited
from posattn_jax.data.text import text_files
from posattn_jax.system.errors import InputError

NUM_BYTES = 256


@dataclasses.dataclass(frozen=True)
class ByteSequences(Tabulated):
    """A text in sequences that do not overlap. The targets of a sequence are its bytes shifted by one.

    Attributes:
      text: [n] uint8.
      length: t, the length of a sequence. Bytes at the end that fill no sequence are left out.
    """

    text: np.ndarray
    length: int

    def __len__(self) -> int:
        return max(len(self.text) - 1, 0) // self.length

    @property
    def knows(self) -> dict[str, Any]:
        """See `batches.Source`."""
        return {"input_shape": (self.length,), "vocabulary_size": NUM_BYTES}

    def select(self, kept: slice) -> "ByteSequences":
        """A range of consecutive sequences."""
        first, last, _ = kept.indices(len(self))
        return dataclasses.replace(self, text=self.text[first * self.length : last * self.length + 1])

    def batch(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        """{"tokens", "targets" [b t]}, int32: the bytes of these sequences, and the byte after each."""
        rows = np.asarray(ids)[:, None] * self.length + np.arange(self.length + 1)
        found = self.text[rows].astype(np.int32)
        return {"tokens": found[:, :-1], "targets": found[:, 1:]}


@dataclasses.dataclass(frozen=True)
class Characters(DataSet):
    """Text as the bytes of its UTF-8. In English text, nearly every byte is a character. See also `text_files.plain`.

    Attributes:
      dir: a file, or a folder of .txt and .txt.gz files, which are read in the order of their names.
      validation_dir: the same for validation; "": the last twentieth of the sequences.
      validation_limit: use only the first so many sequences of the validation part; 0: all.
      length: t, the length of a sequence in bytes.
    """

    dir: str = "data/text"
    validation_dir: str = ""
    validation_limit: int = 0
    length: int = 1024

    name: ClassVar[str] = "characters"

    def __post_init__(self):
        if self.length < 2:
            raise ValueError(f"length={self.length}: expected at least 2")

    def load(self, reading: Reading) -> dict[str, ByteSequences]:
        """See `DataSet`; there is no test part."""
        files = text_files.find(pathlib.Path(self.dir), "data.dir")
        train = self._read("data.dir", self.dir, files, least=1 if self.validation_dir else 2)
        if self.validation_dir:
            held_out = text_files.find_held_out(pathlib.Path(self.validation_dir), files)
            validation = self._read("data.validation_dir", self.validation_dir, held_out, least=1)
        else:
            first = min(round(0.95 * len(train)), len(train) - 1)
            train, validation = train.select(slice(first)), train.select(slice(first, None))
        return {"train": train, "validation": limited(validation, self.validation_limit)}

    def _read(self, field: str, path: str, files: Iterable[pathlib.Path], least: int) -> ByteSequences:
        text = _bytes_of(files)
        found = ByteSequences(text, self.length)
        if len(found) < least:
            needed = least * self.length + 1
            raise InputError(f"{field}={path}: {len(text):,} bytes: expected {needed:,} for data.length={self.length}")
        return found

    def files(self) -> Files:
        return text_files.of_run(self.dir, self.validation_dir)

    def empty(self, workdir: pathlib.Path) -> ByteSequences:
        return ByteSequences(np.zeros(0, np.uint8), self.length)


def _bytes_of(files: Iterable[pathlib.Path]) -> np.ndarray:
    """All bytes of the text of the files. Raises InputError if a file is damaged."""
    parts = []
    for path in files:
        try:
            with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
                parts.append(np.frombuffer(text_files.plain(file.read()), np.uint8))
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{path}: cannot be read ({error})") from error
    return np.concatenate(parts)
