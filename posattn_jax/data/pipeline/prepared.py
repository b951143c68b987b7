"""Sets that tensorflow-datasets has prepared: images, GLUE's sentences, and translations.

Reading them needs no TensorFlow; preparing them does. A set's `features.json` names Python classes. tensorflow-datasets
would import, and so execute, any module named there. Therefore these names are checked first.
"""

import contextlib
import dataclasses
import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from posattn_jax.data.images import ImageRecord, ImageSet, Split
from posattn_jax.data.text import text_files
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import files_below

NAMES = ("pythonClassName", "python_class_name", "type")  # keys of the class of a feature; the last is in older sets
MODULES = "tensorflow_datasets.core.features."


def find(name: str, folder: pathlib.Path) -> pathlib.Path | None:
    """The folder of the newest prepared set with this name, such as wmt14_translate/de-en; None if there is none."""

    def version(path: pathlib.Path) -> tuple[list[int], pathlib.Path]:
        return [int(number) for number in path.name.split(".") if number.isdecimal()], path

    found = (path.parent for path in files(folder / name) if path.name == "dataset_info.json")
    return max(found, key=version, default=None)


def files(folder: pathlib.Path) -> list[pathlib.Path]:
    """All files of a prepared set, in linked folders too."""
    return files_below(folder, hidden=True)[0]


@dataclasses.dataclass(frozen=True)
class PreparedImages(ImageRecord):
    """A set called `name` with the features "image" and "label". A side is None if the set does not say it."""

    name: str
    sides: tuple[Any, ...]
    channels: int
    names: tuple[str, ...]

    def load(self, folder: pathlib.Path, split: Split, download: bool = False) -> ImageSet | None:
        """See `ImageRecord`. A test part without labels, which are -1, is as none."""
        builder, what = _image_builder(self.name, folder), f'tfds set "{self.name}"'
        with _readable(f"{what} in {folder}"):
            _check_has(what, "split", split, builder.info.splits)
            examples = list(builder.as_data_source(split))
        if len({example["image"].shape for example in examples}) != 1:
            raise InputError(f"{what}: its images differ in size")
        labels = np.array([example["label"] for example in examples], np.int64)
        if split == "test" and (labels < 0).any():
            print(f"{what}: its test part has no labels, and is left out")
            return None
        return ImageSet(np.stack([example["image"] for example in examples]), labels, len(self.names))

    def files(self, folder: pathlib.Path, split: Split) -> list[pathlib.Path]:
        """See `ImageRecord`. These are all files of the set."""
        return files(folder / self.name)


def images(name: str, folder: pathlib.Path) -> PreparedImages:
    """The description of a set of images, without reading these. Raises InputError if there is no such set."""
    features = _image_builder(name, folder).info.features
    *sides, channels = features["image"].shape
    return PreparedImages(name, tuple(sides), channels, tuple(features["label"].names))


def sentences(folder: pathlib.Path, split: str, features: Sequence[str]) -> Iterator[tuple[tuple[str, ...], float]]:
    """The sentences and the label of each of GLUE's examples, in the order of the official files. Unknown labels are 0.

    Raises:
      InputError: the set cannot be read.
    """
    with _readable(f"{folder}:"):
        for example in sorted(_builder(folder).as_data_source(split), key=lambda example: example["idx"]):
            yield tuple(example[each].decode() for each in features), max(0.0, float(example["label"]))


def lines(folder: pathlib.Path, split: str, language: str) -> Iterator[str]:
    """The sentences of one language, in the order of the set, with normalised white space.

    Raises:
      InputError: the set has no such split or language, or cannot be read.
    """
    with _readable(f"{folder}:"):
        builder = _builder(folder)
        _check_has(f"{folder}:", "split", split, builder.info.splits)
        _check_has(f"{folder}:", "language", language, builder.info.features)
        for example in builder.as_data_source(split):
            yield text_files.normalised(example[language].decode())


def _builder(folder: pathlib.Path) -> Any:
    """The builder that reads the set in `folder`. It is not found by name, which may name code on the network."""
    for path in (path for path in files(folder) if path.name == "features.json"):
        try:
            named = list(_classes(json.loads(path.read_text(encoding="utf-8"))))
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}: cannot be read ({error}): prepare the set again") from error
        for each in named:
            if not str(each).startswith(MODULES):
                raise InputError(f'{path}: names the class "{each}": expected features of tensorflow-datasets')
    import tensorflow_datasets as tfds  # takes seconds, and most runs do not read tfds

    return tfds.builder_from_directory(folder)


def _classes(described: Any) -> Iterator[Any]:
    """Every class named in a tree of JSON."""
    if isinstance(described, dict):
        yield from (described[key] for key in NAMES if key in described)
        described = list(described.values())
    for each in described if isinstance(described, list) else ():
        yield from _classes(each)


def _image_builder(name: str, folder: pathlib.Path) -> Any:
    """The builder that reads a set of labelled images. Raises InputError if there is no such prepared set."""
    prepared = find(name, folder)
    if prepared is None:
        raise InputError(
            f'tfds set "{name}" is not prepared in data.dir={folder}: install the extra "prepare" and run '
            f"tfds build {name} --data_dir={folder} --file_format=array_record"
        )
    builder = _builder(prepared)
    if not {"image", "label"} <= set(builder.info.features or ()):
        raise InputError(f'tfds set "{name}" has no "image" and "label"')
    return builder


def _check_has(where: str, what: str, given: str, allowed: Any) -> None:
    if given not in allowed:
        raise InputError(f'{where} has no {what} "{given}": it has {", ".join(allowed)}')


@contextlib.contextmanager
def _readable(what: str) -> Iterator[None]:
    """Turns any error of array_record and tfds, for another format or a damaged file, into InputError."""
    import tensorflow_datasets  # noqa: F401 (if it is missing, the file is not to blame)

    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"{what} cannot be read ({error}): prepare it again with --file_format=array_record"
        ) from error
