"""The lines of a text as token ids on disk, written once as a stream."""

import array
import itertools
import pathlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from posattn_jax.data.text import text_files
from posattn_jax.data.tokenizers.tokenizer import END, Tokenizer
from posattn_jax.system import checksums
from posattn_jax.system.doing import doing
from posattn_jax.system.errors import InputError

CHUNK = 10_000  # lines that are tokenised at a time
VERSION = 1  # of the format on disk


class Side(NamedTuple):
    """One language of a parallel text.

    Attributes:
      name: its name in errors.
      lines: the lines of the text.
      files: the files that the lines come from, in any format.
      part: which part of these files the lines are; (): all.
    """

    name: str
    lines: Iterator[str]
    files: list[pathlib.Path]
    part: tuple[str, ...] = ()


def tokenised(side: Side, tokenizer: Tokenizer, cache: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    """The ids of a side, with END after each line, and where each line begins: see `read`. Empty lines have no id.

    Raises:
      InputError: the side has no text.
    """

    def make(temporary: pathlib.Path) -> None:
        rows = (ids for _, ids in encoded(side.lines, tokenizer))
        # a line may consist of characters that the tokenizer drops; then it has no id
        with doing(f"tokenising {side.name}", after=0.0):
            write((np.append(ids, END) if len(ids) else ids for ids in rows), tokenizer, temporary)

    key = text_files.fingerprint(side.files, "lines", VERSION, tokenizer.sha256, *side.part)
    folder = cache / f"lines-{key[:16]}"
    checksums.keep_folder(folder, make)
    ids, starts = read(folder, tokenizer)
    if not len(ids):
        raise InputError(f"{side.name}: no line with text")
    return ids, starts


def encoded(lines: Iterator[str], tokenizer: Tokenizer) -> Iterator[tuple[str, np.ndarray]]:
    """Each line and its ids."""
    for chunk in iter(lambda: list(itertools.islice(lines, CHUNK)), []):
        yield from zip(chunk, tokenizer.encode(chunk), strict=True)


def write(rows: Iterable[np.ndarray], tokenizer: Tokenizer, folder: pathlib.Path) -> None:
    """Writes the ids of lines into a folder, as a stream."""
    starts = array.array("q", [0])
    with (folder / "ids.bin").open("wb") as file:
        for ids in rows:
            starts.append(starts[-1] + len(ids))
            file.write(ids.astype(_dtype(tokenizer)).tobytes())
    np.save(folder / "starts.npy", np.array(starts, np.int64))


def read(folder: pathlib.Path, tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """All ids that `write` has written, one line after the other, and [lines + 1] where each line begins."""
    starts = np.load(folder / "starts.npy", mmap_mode="r", allow_pickle=False)
    ids = np.memmap(folder / "ids.bin", _dtype(tokenizer), "r") if starts[-1] else np.zeros(0, _dtype(tokenizer))
    return ids, starts


def _dtype(tokenizer: Tokenizer) -> type:
    return np.uint16 if tokenizer.vocabulary_size <= 2**16 else np.uint32
