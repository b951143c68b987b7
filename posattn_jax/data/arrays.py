"""Labelled arrays in .npz files: series, images and volumes."""

import contextlib
import dataclasses
import pathlib
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import numpy as np

from posattn_jax.data import own
from posattn_jax.data.images import ImageSet
from posattn_jax.data.own_images import NamedImages, OwnImages
from posattn_jax.data.remembered import Files, below
from posattn_jax.system.errors import InputError

SUFFIX = ".npz"
MOST_CHANNELS = 4  # that a last axis is taken for without being told


@dataclasses.dataclass(frozen=True)
class Arrays(OwnImages):
    """A .npz file with "images" or "inputs" [n *S] or [n *S c], and "labels" [n]; or train.npz, val.npz and test.npz.

    Values are uint8, which become -1 to 1, or floats, which a model is given as they are. Labels are integers or texts;
    where the file has "names", integers are the places of these.

    Attributes:
      dir: the file, or the folder of several. Without a val.npz it is divided by the run's seed.
      num_dims: p, of the grid S; 0: the last axis is channels where it has at most four, and there is another.
      layout: "grid"; "1d": its row-major sequence.
      pool: the last two sides are mean-pooled by this factor.
      malformed: whether rows with values that are not finite, or labels that the train part has not, are refused, or
        skipped.
      validation_limit: judge by the first so many of the validation part; 0: all.
    """

    dir: str = "data/arrays"
    num_dims: int = 0
    layout: Literal["grid", "1d"] = "grid"
    pool: int = 1
    malformed: own.Malformed = "refuse"
    validation_limit: int = 0

    name: ClassVar[str] = "arrays"

    def __post_init__(self):
        if not 0 <= self.num_dims <= 3:
            raise ValueError(f"num_dims={self.num_dims}: expected 1 to 3; or 0, to find it")

    def parts(self) -> dict[str, pathlib.Path]:
        return own.find_parts(pathlib.Path(self.dir), (SUFFIX,))

    def read(self, part: str, path: pathlib.Path, known: dict[str, Any] | None) -> NamedImages:
        with _opened(path) as file:
            values, (labels, names) = _values(path, file), _labels(path, file)
        if len(values) != len(labels):
            raise InputError(f'{path}: {len(values):,} rows, and {len(labels):,} "labels"')
        if known is None:
            values = _with_channels(path, values, self.num_dims)
        else:
            names, values = tuple(known["classes"]), _like(path, values, known["shape"], known["max_value"])
        own.check_labels(names, path)
        wrong = _wrong(path, values)
        numbers = {name: number for number, name in enumerate(names)}

        def rows() -> Iterator[int | InputError]:
            for row, label in enumerate(labels):
                if row in wrong:
                    yield wrong[row]
                else:
                    yield row if label in numbers else InputError(f"{path}: row {row}: {own.unknown(label, names)}")

        good = own.sift(rows(), part, "rows", self.malformed)
        kept = np.array([numbers[labels[row]] for row in good])
        sides = " x ".join(map(str, values.shape[1:-1]))
        print(f"{part}: {len(good):,} arrays of {sides}, channels: {values.shape[-1]}, in {path}")
        return self.lay_out(ImageSet(values[good], kept, len(names), _max_value(values)), names)

    def lay_out(self, images: ImageSet, names: tuple[str, ...]) -> NamedImages:
        whole: Any = f"{images.images.ndim - 2}d"
        return NamedImages(images, whole if self.layout == "grid" else self.layout, self.pool, names=names)

    def files(self) -> Files:
        paths: list[pathlib.Path] = []
        with contextlib.suppress(InputError):  # told when it is read
            paths = list(self.parts().values())
        return below(pathlib.Path(self.dir), paths)


def read_rows(path: pathlib.Path, like: ImageSet) -> Iterator[np.ndarray | InputError]:
    """Each array of a file, or what is wrong with it; InputError where they are not like those of `like`."""
    with _opened(path) as file:
        values = _like(path, _values(path, file), like.images.shape[1:], like.max_value)
    wrong = _wrong(path, values)
    for row, value in enumerate(values):
        yield wrong.get(row) or value


@contextlib.contextmanager
def _opened(path: pathlib.Path) -> Iterator[Any]:
    """The arrays of a file by name; InputError where it is none, or is damaged."""
    try:
        opened = np.load(path, allow_pickle=False)
        if not isinstance(opened, np.lib.npyio.NpzFile):
            raise InputError(f"{path}: expected a .npz file, of several arrays")
        with opened as file:
            yield file
    except InputError:
        raise
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{path}: cannot be read as .npz ({error})") from error


def _values(path: pathlib.Path, file: Any) -> np.ndarray:
    """[n ...] uint8, or float32."""
    names = [name for name in ("images", "inputs") if name in file]
    if len(names) != 1:
        raise InputError(f'{path}: has {_listed(file)}: expected one of "images" and "inputs"')
    values = file[names[0]]
    if values.dtype != np.uint8 and values.dtype.kind != "f":
        raise InputError(f'{path}: "{names[0]}" is {values.dtype}: expected uint8 or floats')
    if values.ndim < 2:
        raise InputError(f'{path}: "{names[0]}" is {list(values.shape)}: expected [n *S] or [n *S c]')
    return values if values.dtype == np.uint8 else values.astype(np.float32)


def _labels(path: pathlib.Path, file: Any) -> tuple[list[str], tuple[str, ...]]:
    """[n] as texts, and all that there are, by number."""
    if "labels" not in file:
        raise InputError(f'{path}: has {_listed(file)}: expected "labels"')
    labels = file["labels"]
    if labels.ndim != 1 or labels.dtype.kind not in "iuU":
        given = f"{labels.dtype} {list(labels.shape)}"
        raise InputError(f'{path}: "labels" is {given}: expected integers or texts [n]')
    if "names" not in file or labels.dtype.kind == "U":
        found = [str(label) for label in labels.tolist()]
        return found, own.in_order(found)
    names = tuple(map(str, file["names"].tolist()))
    if len(labels) and not 0 <= labels.min() <= labels.max() < len(names):
        raise InputError(f'{path}: "labels" is {labels.min()} to {labels.max()}, and there are {len(names)} "names"')
    return [names[label] for label in labels], names


def _listed(file: Any) -> str:
    return ", ".join(f'"{name}"' for name in file) or "no array"


def _with_channels(path: pathlib.Path, values: np.ndarray, num_dims: int) -> np.ndarray:
    """[n *S c], with one channel where there is no axis of them."""
    axes = values.ndim - 1
    has_channels = axes > 1 and (axes == 4 or values.shape[-1] <= MOST_CHANNELS) if not num_dims else axes > num_dims
    found = axes - has_channels
    if found not in ((1, 2, 3) if not num_dims else (num_dims,)):
        expected = f"data.num_dims={num_dims}" if num_dims else "a grid of 1 to 3 dimensions"
        raise InputError(f"{path}: arrays of {list(values.shape[1:])}: expected {expected}, and channels or none")
    return values if has_channels else values[..., None]


def _like(path: pathlib.Path, values: np.ndarray, shape: Any, max_value: int | None) -> np.ndarray:
    """[n *S c] of the shape [*S c], with values of the kind that a run was trained on."""
    *sides, channels = shape
    if channels == 1 and list(values.shape[1:]) == sides:
        values = values[..., None]
    given, expected = (list(values.shape[1:]), _max_value(values)), (list(shape), max_value)
    if given != expected:
        kinds = {None: "floats", 255: "uint8"}
        told = [f"{kinds[most]} {size}" for size, most in (given, expected)]
        raise InputError(f"{path}: arrays of {told[0]}: expected {told[1]}, as the run was trained on")
    return values


def _max_value(values: np.ndarray) -> int | None:
    """See `ImageSet`."""
    return 255 if values.dtype == np.uint8 else None


def _wrong(path: pathlib.Path, values: np.ndarray) -> dict[int, InputError]:
    """What is wrong with the values of some rows."""
    rows = np.flatnonzero(~np.isfinite(values).reshape(len(values), -1).all(1))
    return {int(row): InputError(f"{path}: row {row}: has values that are not finite") for row in rows}
