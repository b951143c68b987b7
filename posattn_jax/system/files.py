"""Finds, reads and writes files. A reader never sees half a file of a run folder, not even after a crash."""

import functools
import json
import operator
import os
import pathlib
import platform
from collections.abc import Callable
from typing import IO, Any

from posattn_jax.system.errors import InputError, RunError
from posattn_jax.system.moved import with_present_classes

# Fields of a config in which otherwise equal runs may differ: the place of the data, and the devices.
OF_THE_PLACE = ("data.dir", "data.validation_dir", "data.download", "cache_dir")
OF_THE_PLACE += ("mesh.data", "mesh.fsdp", "mesh.model", "mesh.grid", "train.bounded_spans", "train.merged_batches")


def cache_folder() -> pathlib.Path:
    """The folder for files that are made once per machine: `$XDG_CACHE_HOME/posattn_jax`, by default in `~/.cache`."""
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "posattn_jax"


def files_below(folder: pathlib.Path, hidden: bool = False) -> tuple[list[pathlib.Path], list[InputError]]:
    """All files below a folder, sorted, and an error for each link to nothing and each folder that cannot be read.

    Linked files and folders are followed. Below each entry of the folder, a folder that is linked from several places
    is read once, and nothing is read again that a link leads back to. Hidden files and folders, which some programs
    create, are left out, unless `hidden`.
    """
    root = os.path.realpath(folder)
    found: list[pathlib.Path] = []
    wrong: dict[pathlib.Path, InputError] = {}
    seen: dict[pathlib.Path, set[str]] = {}  # the folders that were read, by the entry that they are below
    folders, links = [(folder, folder, False)], []
    while folders or links:
        # Links come last, so that what is reached without them keeps its name.
        path, top, is_linked = folders.pop() if folders else links.pop(0)
        place, known = os.path.realpath(path), seen.setdefault(top, {root})
        if is_linked and place in known:
            continue
        known.add(place)
        try:
            entries = [entry for entry in os.scandir(path) if hidden or not entry.name.startswith(".")]
        except FileNotFoundError:
            continue
        except OSError as error:
            wrong[path] = InputError(f"{path}: cannot be read ({error.strerror})")
            continue
        for entry in sorted(entries, key=lambda entry: entry.name):
            each, is_link = path / entry.name, entry.is_symlink()
            if os.path.isdir(each) if is_link else entry.is_dir():
                below = (each, each if path == folder else top, is_linked or is_link)
                (links if is_link else folders).append(below)
            elif os.path.isfile(each) if is_link else entry.is_file():
                found.append(each)
            elif error := broken_link(each):
                wrong[each] = error
    return sorted(found), [wrong[path] for path in sorted(wrong)]


def broken_link(path: pathlib.Path) -> InputError | None:
    """The error of a link to nothing; None for anything else."""
    if not path.is_symlink() or os.path.exists(path):
        return None
    return InputError(f"{path}: is a link to {os.readlink(path)}, which is not there")


def temporary_name(path: pathlib.Path) -> pathlib.Path:
    """A hidden name in the same folder that only this process uses, among all hosts that see the folder."""
    return path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}")


def write_atomically(path: pathlib.Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Lets `write` fill a temporary file next to `path`, and renames it to `path` once it is on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(path)
    try:
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: pathlib.Path, text: str) -> None:
    """Writes a text, atomically."""
    write_atomically(path, lambda file: file.write(text.encode()))


def write_json(path: pathlib.Path, value: Any) -> None:
    """Writes `value` as indented JSON, atomically."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def read_json(path: pathlib.Path) -> Any:
    """The contents of a JSON file, with the present names of classes; None if there is no such file.

    Raises:
      InputError: it cannot be parsed.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"), object_hook=with_present_classes) if path.exists() else None
    except ValueError as error:  # no JSON, or no UTF-8
        raise InputError(f"{path}: cannot be read ({error})") from error


def as_saved(value: dict[str, Any]) -> dict[str, Any]:
    """A value as `read_json` reads it, once it was written."""
    return json.loads(json.dumps(value), object_hook=with_present_classes)


def config_of_run(workdir: pathlib.Path) -> Any:
    """The `config.json` of a run folder. Raises InputError if there is no run."""
    saved = read_json(workdir / "config.json")
    if saved is None:
        raise InputError(f"--workdir={workdir}: no run there (it has no config.json)")
    return saved


def checkpoint_steps(workdir: pathlib.Path) -> list[int]:
    """The steps of the checkpoints in a run folder, ascending."""
    return sorted(int(path.name) for path in workdir.glob("checkpoints/*") if path.name.isdigit())


def read_metrics(path: pathlib.Path) -> list[dict]:
    """The rows of a `metrics.jsonl`; a last line cut short by a crash is left out.

    Raises:
      RunError: another line cannot be read.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number < len(lines):
                raise RunError(f"{path}: line {number} cannot be read ({error})") from error
    return rows


def is_evaluated(evaluation: dict[str, Any] | None, summary: dict[str, Any], fields: dict[str, Any]) -> bool:
    """Whether an `evaluation.json` is of the best epoch of a `summary.json`, with these fields in its config."""
    if evaluation is None or evaluation["step"] != summary["best"]["step"]:
        return False
    return has_fields(evaluation["config"], fields)


def has_fields(config: dict[str, Any], fields: dict[str, Any]) -> bool:
    """Whether a `config.json` has these values at these dotted names."""
    try:
        return all(value_at(config, path) == value for path, value in as_saved(fields).items())
    except (KeyError, TypeError):  # there is no such field
        return False


def value_at(config: dict[str, Any], path: str) -> Any:
    """The value of a field by its dotted name; a dict if the name is that of a part."""
    return functools.reduce(operator.getitem, path.split("."), config)
