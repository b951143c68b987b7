"""Reads the rows of TSV, CSV and JSONL files of text."""

import csv
import io
import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from posattn_jax.system.errors import InputError

SUFFIXES = (".tsv", ".csv", ".jsonl")
Row = Mapping[str, Any] | InputError


def rows(path: pathlib.Path, needed: tuple[str, ...]) -> Iterator[tuple[str, Row]]:
    """The place of each row in its file, and its cells by their columns, or its error.

    Bytes that are not UTF-8 become lone surrogates, which no valid text has, so that the error can name the row.

    Raises:
      InputError: the file cannot be read, or its first line does not name the columns that are needed.
    """
    if path.suffix not in SUFFIXES:
        raise InputError(f"data.dir={path}: expected a name that ends with {', '.join(SUFFIXES)}")
    try:
        text = path.read_bytes().decode(errors="surrogateescape").removeprefix("\ufeff")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    lines = text.removesuffix("\n").split("\n")  # a lone \r ends no line
    if path.suffix == ".jsonl":
        yield from _objects(path, lines)
        return
    at_tabs = ((f"{path}: line {number}", line.rstrip("\r").split("\t")) for number, line in enumerate(lines, start=1))
    table = _quoted(path, text) if path.suffix == ".csv" else at_tabs
    _, header = next(table, ("", []))
    if isinstance(header, InputError):
        raise header
    for column in needed:
        if header.count(column) != 1:
            many = "several columns" if column in header else "no column"
            raise InputError(f'{path}: line 1: {many} "{column}" (it has {", ".join(header)})')
    for where, cells in table:
        if isinstance(cells, InputError):
            yield where, cells
        elif len(cells) != len(header):
            yield where, InputError(f"{where}: columns: {len(cells)}, expected {len(header)}")
        else:
            yield where, dict(zip(header, cells, strict=True))


def _objects(path: pathlib.Path, lines: list[str]) -> Iterator[tuple[str, Row]]:
    """The rows of JSONL."""
    for number, line in enumerate(lines, start=1):
        where = f"{path}: line {number}"
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield where, InputError(f"{where}: no JSON ({error})")
            continue
        yield where, found if isinstance(found, dict) else InputError(f"{where}: expected a JSON object")


def _quoted(path: pathlib.Path, text: str) -> Iterator[tuple[str, list[str] | InputError]]:
    """The rows of CSV. A row may span several lines. Empty lines are skipped.

    After an error, reading goes on in the next line, so that a quote which is never closed costs no other row.
    """
    lines = io.StringIO(text, newline="").readlines()

    def reader_from(line: int) -> Any:
        return csv.reader((lines[i] for i in range(line, len(lines))), strict=True)

    first = start = 0  # the line with which the reader began, and that of the next row
    reader = reader_from(first)
    while True:
        line, where = start, f"{path}: line {start + 1}"
        try:
            cells = next(reader, None)
            if cells is None:
                return
            start = first + reader.line_num
            raw = "".join(lines[line:start])
            if any(cell.replace('"', '""') not in raw for cell in cells):
                raise csv.Error("a quote in a cell that does not begin with one")
        except csv.Error as error:
            yield where, InputError(f"{where}: {error}")
            first = start = line + 1
            reader = reader_from(first)
            continue
        if cells:
            yield where, cells
