"""One text's lines as token ids on disk, made once as a stream."""

import array
import itertools
import pathlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from posattn_jax.data import cache as kept
from posattn_jax.data.tokenizer import END, Tokenizer
from posattn_jax.system.errors import InputError

CHUNK = 10_000  # lines that are tokenised at a time
VERSION = 1  # of what is kept on disk


class Lines(NamedTuple):
    """The ids of lines.

    Attributes:
      name: of the text, for errors.
      ids: one line after the other, each ended by END; an empty one has no id.
      starts: [lines + 1] where each begins.
    """

    name: str
    ids: np.ndarray
    starts: np.ndarray


def tokenised(name: str, lines: Iterator[str], key: str, tokenizer: Tokenizer, cache: pathlib.Path) -> Lines:
    """One side's ids; InputError where it has no text."""
    folder = cache / f"lines-{key[:16]}"
    dtype = np.uint16 if tokenizer.vocabulary_size <= 2**16 else np.uint32

    def make(temporary: pathlib.Path) -> None:
        print(f"tokenising {name} ...")
        _write(lines, tokenizer, dtype, temporary)

    kept.folder(folder, make)
    starts = np.load(folder / "starts.npy", mmap_mode="r", allow_pickle=False)
    if not starts[-1]:
        raise InputError(f"{name}: no line with text")
    return Lines(name, np.memmap(folder / "ids.bin", dtype, "r"), starts)


def _write(lines: Iterator[str], tokenizer: Tokenizer, dtype: type, folder: pathlib.Path) -> None:
    """Streams the lines into a folder."""
    starts = array.array("q", [0])
    with (folder / "ids.bin").open("wb") as file:
        for chunk in iter(lambda: list(itertools.islice(lines, CHUNK)), []):
            for ids in tokenizer.encode(chunk):
                if len(ids):  # a line may be of characters only that the model reads as none
                    ids = np.append(ids, END)
                starts.append(starts[-1] + len(ids))
                file.write(ids.astype(dtype).tobytes())
    np.save(folder / "starts.npy", np.array(starts, np.int64))
