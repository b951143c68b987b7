"""Labelled arrays in .npz files: series, images and volumes."""

import contextlib
import dataclasses
import pathlib
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import numpy as np

from posattn_jax.data.images import ImageSet
from posattn_jax.data.images.user_images import NamedImages, UserImages
from posattn_jax.data.pipeline import user_data
from posattn_jax.data.pipeline.checksums import Files, found_below
from posattn_jax.system.errors import InputError

SUFFIX = ".npz"
MOST_CHANNELS = 4  # a last axis of at most this size is taken to be channels, unless `num_dims` says otherwise


@dataclasses.dataclass(frozen=True)
class Arrays(UserImages):
    """A .npz file with "images" or "inputs" [n *S] or [n *S c], and "labels" [n]; or train.npz, val.npz and test.npz.

    Values are uint8, which are scaled to -1 to 1, or floats, which the model gets unchanged. Labels are integers or
    texts. If the file has "names", integer labels are indices into these.

    Attributes:
      dir: the file, or the folder of train.npz and the others. Without val.npz, the run's seed splits train.npz.
      num_dims: p, the dimensions of the grid S. 0: the last axis is channels if there are four axes, or if its size is
        at most four and it is not the only axis.
      layout: "grid"; "1d": the row-major sequence of the grid.
      pool: the factor by which the last two sides are mean-pooled.
      malformed: whether to refuse or to skip rows with values that are not finite, without a label, or with a label
        that the train part does not have.
      validation_limit: use only the first so many examples of the validation part; 0: all.
    """

    dir: str = "data/arrays"
    num_dims: int = 0
    layout: Literal["grid", "1d"] = "grid"
    pool: int = 1
    malformed: user_data.Malformed = "refuse"
    validation_limit: int = 0

    name: ClassVar[str] = "arrays"

    def __post_init__(self):
        if not 0 <= self.num_dims <= 3:
            raise ValueError(f"num_dims={self.num_dims}: expected 1 to 3; or 0, to find it")

    def parts(self) -> dict[str, pathlib.Path]:
        return user_data.find_parts(pathlib.Path(self.dir), (SUFFIX,))

    def read(self, part: str, path: pathlib.Path, known: dict[str, Any] | None) -> NamedImages:
        with _opened(path) as file:
            values, (labels, given) = _values(path, file), _labels(path, file)
        if len(values) != len(labels):
            raise InputError(f'{path}: {len(values):,} rows, and {len(labels):,} "labels"')
        if known is None:
            values = _with_channels(path, values, self.num_dims)
            names = user_data.names_of(filter(str.strip, labels), part, path, given)
        else:
            names, values = tuple(known["classes"]), _like(path, values, known["shape"], known["max_value"])
        wrong, number_of = _wrong(path, values), user_data.numbering(names)

        def rows() -> Iterator[tuple[int, int] | InputError]:
            for row, label in enumerate(labels):
                number = number_of(label)
                if row in wrong:
                    yield wrong[row]
                elif not label.strip():
                    yield InputError(f'{path}: row {row}: "labels" is empty: expected a text')
                elif number is None:
                    yield InputError(f"{path}: row {row}: {user_data.unknown(label, names)}")
                else:
                    yield row, number

        good, kept = map(np.array, zip(*user_data.sift(rows(), part, "rows", self.malformed), strict=True))
        sides = " x ".join(map(str, values.shape[1:-1]))
        print(f"{part}: {len(good):,} arrays of {sides}, channels: {values.shape[-1]}, in {path}")
        return self.lay_out(ImageSet(values[good], kept, len(names), _max_value(values)), names)

    def lay_out(self, images: ImageSet, names: tuple[str, ...]) -> NamedImages:
        whole: Any = f"{images.images.ndim - 2}d"
        return NamedImages(images, whole if self.layout == "grid" else self.layout, self.pool, names=names)

    def files(self) -> Files:
        return found_below(self.dir, lambda: self.parts().values())


def read_rows(path: pathlib.Path, like: ImageSet) -> Iterator[np.ndarray | InputError]:
    """Each array of a file, or its error. Raises InputError if the arrays are not of the kind of `like`."""
    with _opened(path) as file:
        values = _like(path, _values(path, file), like.images.shape[1:], like.max_value)
    wrong = _wrong(path, values)
    for row, value in enumerate(values):
        yield wrong.get(row) or value


@contextlib.contextmanager
def _opened(path: pathlib.Path) -> Iterator[Any]:
    """The arrays of a .npz file by name. Raises InputError if it is not such a file, or is damaged."""
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
    """The values [n ...] of a file, uint8 or float32."""
    names = [name for name in ("images", "inputs") if name in file]
    if len(names) != 1:
        raise InputError(f'{path}: has {_listed(file)}: expected one of "images" and "inputs"')
    values = file[names[0]]
    if values.dtype != np.uint8 and values.dtype.kind != "f":
        raise InputError(f'{path}: "{names[0]}" is {values.dtype}: expected uint8 or floats')
    if values.ndim < 2 or not all(values.shape[1:]):
        raise InputError(f'{path}: "{names[0]}" is {list(values.shape)}: expected [n *S] or [n *S c]')
    return values if values.dtype == np.uint8 else values.astype(np.float32)


def _labels(path: pathlib.Path, file: Any) -> tuple[list[str], tuple[str, ...] | None]:
    """The labels [n] as texts, and the names of all classes, in order; None: the file does not have them."""
    if "labels" not in file:
        raise InputError(f'{path}: has {_listed(file)}: expected "labels"')
    labels = file["labels"]
    if labels.ndim != 1 or labels.dtype.kind not in "iuU":
        given = f"{labels.dtype} {list(labels.shape)}"
        raise InputError(f'{path}: "labels" is {given}: expected integers or texts [n]')
    if "names" not in file or labels.dtype.kind == "U":
        return [str(label) for label in labels.tolist()], None
    if file["names"].ndim != 1 or file["names"].dtype.kind not in "iuU":
        given = f"{file['names'].dtype} {list(file['names'].shape)}"
        raise InputError(f'{path}: "names" is {given}: expected texts or integers [k]')
    names = tuple(map(str, file["names"].tolist()))
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f'{path}: "names" has {user_data.listed(twice)} twice: expected each once')
    if len(labels) and not 0 <= labels.min() <= labels.max() < len(names):
        raise InputError(f'{path}: "labels" is {labels.min()} to {labels.max()}, and there are {len(names)} "names"')
    return [names[label] for label in labels], names


def _listed(file: Any) -> str:
    return ", ".join(f'"{name}"' for name in file) or "no array"


def _with_channels(path: pathlib.Path, values: np.ndarray, num_dims: int) -> np.ndarray:
    """The values [n *S c], with one channel if they have no axis of channels."""
    axes = values.ndim - 1
    has_channels = axes > 1 and (axes == 4 or values.shape[-1] <= MOST_CHANNELS) if not num_dims else axes > num_dims
    found = axes - has_channels
    if found not in ((1, 2, 3) if not num_dims else (num_dims,)):
        expected = f"data.num_dims={num_dims}" if num_dims else "a grid of 1 to 3 dimensions"
        raise InputError(f"{path}: arrays of {list(values.shape[1:])}: expected {expected}, and channels or none")
    return values if has_channels else values[..., None]


def _like(path: pathlib.Path, values: np.ndarray, shape: Any, max_value: int | None) -> np.ndarray:
    """The values [n *S c]. Raises InputError unless their shape [*S c] and dtype are those of the training data."""
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
    """The errors of rows with values that are not finite, by row."""
    rows = np.flatnonzero(~np.isfinite(values).reshape(len(values), -1).all(1))
    return {int(row): InputError(f"{path}: row {row}: has values that are not finite") for row in rows}
