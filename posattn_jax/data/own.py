"""Common functions for a user's own data: their parts, malformed examples, and labels, which a run saves."""

import pathlib
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Literal, TypeVar

from posattn_jax.system.errors import InputError
from posattn_jax.system.files import broken_link, read_json, write_json

FILE = "own_data.json"  # in a run folder
MOST_TOLD = 10  # labels that a message lists
MOST_LINES = 1000  # malformed examples that get a line each
PARTS = {"train": ("train",), "validation": ("val", "valid", "validation", "dev"), "test": ("test",)}

Malformed = Literal["refuse", "skip"]
Example = TypeVar("Example")


def find_parts(path: pathlib.Path, suffixes: Sequence[str] = ("",)) -> dict[str, pathlib.Path]:
    """The paths of "train" and, if they exist, of "validation" and "test". `path` is a file or the folder of the parts.

    Raises:
      InputError: there is nothing to train on, a part exists twice, or a part is a link to nothing.
    """
    if path.is_file():
        return {"train": path}
    found = {}
    for part, names in PARTS.items():
        places = [path / f"{name}{suffix}" for name in names for suffix in suffixes]
        there = [each for each in places if each.exists() or each.is_symlink()]
        if len(there) > 1:
            raise InputError(f"data.dir={path}: has {there[0].name} and {there[1].name}: expected one of them")
        if there and (error := broken_link(there[0])):
            raise InputError(f"data.dir: {error}")
        if there:
            found[part] = there[0]
    if "train" not in found:
        expected = ", ".join(f"train{suffix}" for suffix in suffixes)
        raise InputError(f"data.dir={path}: nothing to train on (expected a file, or a folder with {expected})")
    return found


def sift(read: Iterable[Example | InputError], part: str, what: str, malformed: Malformed) -> list[Example]:
    """The examples of a part without the malformed ones. It prints a line for each of these, and their number.

    Raises:
      InputError: an example is malformed and must not be skipped, or no example is left.
    """
    good, wrong = [], []
    for each in read:
        (wrong if isinstance(each, InputError) else good).append(each)
    if wrong and malformed == "refuse":
        first, *others = wrong
        _tell(f"{part}: malformed", others)
        more = f"malformed {what}: {len(wrong):,}, which data.malformed=skip leaves out"
        raise InputError(f"{first} ({more})")
    _tell(f"{part}: left out", wrong)
    if wrong:
        print(f"{part}: malformed {what} that are left out: {len(wrong):,}, beside {len(good):,}")
    if not good:
        raise InputError(f"data.dir: the {part} part has no {what}")
    return good


def _tell(start: str, wrong: Sequence[InputError]) -> None:
    for each in wrong[:MOST_LINES]:
        print(f"{start}: {each}")
    if len(wrong) > MOST_LINES:
        print(f"{start}: and {len(wrong) - MOST_LINES:,} more")


def in_order(labels: Collection[str]) -> tuple[str, ...]:
    """The labels, each once, in order: numerical if all are whole numbers, else alphabetical."""
    are_numbers = all(label.isdecimal() for label in labels)
    return tuple(sorted(set(labels), key=(lambda label: (int(label), label)) if are_numbers else str))


def check_labels(names: Sequence[str], where: object) -> None:
    """Raises InputError if there are fewer than two classes."""
    if len(names) < 2:
        only = f' ("{names[0]}")' if names else ""
        raise InputError(f"{where}: classes: {len(names)}{only}: expected at least 2")


def unknown(label: str, names: Sequence[str]) -> str:
    """The error message for a label that the training data do not have."""
    return f'label "{label}": expected one of the training data, {listed(names)}'


def listed(names: Sequence[str], most: int = MOST_TOLD) -> str:
    """The first few names, for a message."""
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def keep(workdir: pathlib.Path, about: dict[str, Any]) -> None:
    """Saves what a run must know of its data if these do not exist any more: "classes", the names of its labels, ..."""
    write_json(workdir / FILE, about)


def kept(workdir: pathlib.Path | None) -> dict[str, Any] | None:
    """What `keep` has saved; None: the run has not begun."""
    return None if workdir is None else read_json(workdir / FILE)


def of_run(workdir: pathlib.Path) -> dict[str, Any]:
    """What `keep` has saved. Raises InputError if there is nothing."""
    found = kept(workdir)
    if found is None:
        raise InputError(f"--workdir={workdir}: has no {FILE}, which says what its classes are")
    return found
