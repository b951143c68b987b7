"""Common functions for a user's own data: their parts, malformed examples, and labels, which a run saves."""

import collections
import pathlib
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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
        print(f"{part}: malformed {what} that are left out: {len(wrong):,}, next to {len(good):,}")
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


def normalised(label: str) -> str:
    """A label in Unicode's normal form C, which is the name of its class."""
    return unicodedata.normalize("NFC", label)


def names_of(labels: Iterable[str], part: str, where: object, given: Sequence[str] | None = None) -> tuple[str, ...]:
    """The names of the classes of the labels, in order, or in that of the `given` names: each once, see `normalised`.

    It prints a line of labels that are one class, and one of classes that only look as one.

    Raises:
      InputError: there are fewer than two classes.
    """
    counts = collections.Counter(labels)
    found = dict.fromkeys(map(normalised, counts if given is None else given))
    names = in_order(found) if given is None else tuple(found)
    if len(names) < 2:
        only = f' ("{names[0]}")' if names else ""
        raise InputError(f"{where}: classes: {len(names)}{only}: expected at least 2")
    _tell_alike(counts, normalised, f"{part}: labels that differ only in Unicode form are one class", ascii)
    of_classes = collections.Counter[str]()
    for label, number in counts.items():
        of_classes[normalised(label)] += number
    differ = "differ only in case, white space or kinds of characters"
    _tell_alike(of_classes, _looks, f"{part}: labels that {differ} stay several classes", repr)
    return names


def _tell_alike(counts: Mapping[str, int], of: Callable[[str], str], what: str, shown: Callable[[str], str]) -> None:
    """Prints a line of the labels, and how often they occur, that have the same value of a function; if there are."""
    groups = collections.defaultdict(list)
    for label in sorted(counts):
        groups[of(label)].append(f"{shown(label)} ({counts[label]:,})")
    alike = [" and ".join(group) for group in groups.values() if len(group) > 1]
    if alike:
        print(f"{what}: {listed(alike)}")


def _looks(label: str) -> str:
    """A label without differences of case, white space, compatible characters (NFKC), and characters without glyphs."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", label).casefold())
    return " ".join("".join(each for each in folded if unicodedata.category(each) != "Cf").split())


def numbering(names: Sequence[str]) -> Callable[[str], int | None]:
    """A function from a label to the number of its class, whatever its Unicode form; None: it is of no class.

    Where a run of an earlier version has two forms of a name, each label is of the class that is spelled as it is.
    """
    numbers = {name: number for number, name in enumerate(names)}
    of_any_form = {normalised(name): number for name, number in reversed(numbers.items())}
    return lambda label: numbers.get(label, of_any_form.get(normalised(label)))


def unknown(label: str, names: Sequence[str]) -> str:
    """The error message for a label that the training data do not have."""
    return f'label "{label}": expected one of the training data, {listed(names)}'


def listed(names: Sequence[str], most: int = MOST_TOLD) -> str:
    """The first few names, for a message."""
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def save(workdir: pathlib.Path, about: dict[str, Any]) -> None:
    """Saves what a run must know of its data if these do not exist any more: "classes", the names of its labels, ..."""
    write_json(workdir / FILE, about)


def saved(workdir: pathlib.Path | None) -> dict[str, Any] | None:
    """What `save` has saved; None: the run has not begun. Raises InputError if the file has no classes."""
    found = None if workdir is None else read_json(workdir / FILE)
    if found is not None and "classes" not in found:
        raise InputError(f"{workdir}/{FILE}: cannot be read (it has no classes)")
    return found


def of_run(workdir: pathlib.Path) -> dict[str, Any]:
    """What `save` has saved. Raises InputError if there is nothing."""
    found = saved(workdir)
    if found is None:
        raise InputError(f"--workdir={workdir}: has no {FILE}, which says what its classes are")
    return found
