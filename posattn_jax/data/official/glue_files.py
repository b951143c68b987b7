"""Makes the files of GLUE's tasks (Wang 2018) from the same files as its own script."""

import pathlib
import shutil
import zipfile
import zlib
from collections.abc import Iterator, Mapping

from posattn_jax.data.text.glue import TASKS, GlueTask
from posattn_jax.system.errors import InputError

# The zip of each task; MRPC has none.
ZIPS = {task.folder: f"{task.folder}.zip" for task in TASKS.values() if task.folder != "MRPC"} | {"QNLI": "QNLIv2.zip"}
MRPC = ("msr_paraphrase_train.txt", "msr_paraphrase_test.txt", "mrpc_dev_ids.tsv")
DIAGNOSTIC = "AX.tsv"


def write(there: Mapping[str, pathlib.Path], folder: pathlib.Path) -> dict[str, int]:
    """Writes the files of all tasks whose sources exist; returns the number of lines of each file, with the header.

    Raises:
      InputError: an archive is damaged, or no source exists.
    """
    for task in TASKS.values():
        if ZIPS.get(task.folder) in there:
            _unpack(there[ZIPS[task.folder]], task, folder)
    if there.keys() >= set(MRPC):
        train, test, ids = (there[name] for name in MRPC)
        _write_mrpc(train, test, ids, folder / TASKS["mrpc"].folder)
    if DIAGNOSTIC in there:
        path = folder / TASKS["mnli"].diagnostic
        path.parent.mkdir()
        shutil.copyfile(there[DIAGNOSTIC], path)
    found = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*.tsv"))}
    if not found:
        raise InputError("no task of GLUE is there")
    return {name: path.read_bytes().count(b"\n") for name, path in found.items()}


def _unpack(archive: pathlib.Path, task: GlueTask, folder: pathlib.Path) -> None:
    """Unpacks the files of a task. MNLI has a development and a test file for each of its parts."""
    stems = ["train", *(f"{part}{suffix}" for part in ("dev", "test") for suffix, _ in task.parts)]
    (folder / task.folder).mkdir()
    name = ""
    try:
        with zipfile.ZipFile(archive) as zipped:
            for name in (f"{task.folder}/{stem}.tsv" for stem in stems):
                with zipped.open(name) as source, (folder / name).open("wb") as target:
                    shutil.copyfileobj(source, target)
    except (zipfile.BadZipFile, KeyError, zlib.error, EOFError) as error:
        raise InputError(f"{archive} cannot be read at {name} ({error}): get it again") from error


def _write_mrpc(train: pathlib.Path, test: pathlib.Path, dev_ids: pathlib.Path, folder: pathlib.Path) -> None:
    """Writes MRPC from Microsoft's pairs. GLUE lists the development pairs. The test pairs are numbered."""
    held_out = {tuple(cells) for cells in _rows(dev_ids)}
    header, *rows = _rows(train)
    test_header, *test_rows = _rows(test)
    parts = {
        "train": [header, *(row for row in rows if (row[1], row[2]) not in held_out)],
        "dev": [header, *(row for row in rows if (row[1], row[2]) in held_out)],
        "test": [["index", *test_header[1:]], *([str(i), *row[1:]] for i, row in enumerate(test_rows))],
    }
    folder.mkdir()
    for name, written in parts.items():
        (folder / f"{name}.tsv").write_text("".join("\t".join(row) + "\n" for row in written), encoding="utf-8")


def _rows(path: pathlib.Path) -> Iterator[list[str]]:
    """The cells of each line."""
    for line in path.read_bytes().decode("utf-8-sig").split("\n"):
        if line.strip():
            yield line.strip().split("\t")
