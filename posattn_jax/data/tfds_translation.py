"""Sentences and their translations as tensorflow-datasets has prepared them before, such as wmt14_translate/de-en."""

import pathlib
from collections.abc import Iterator
from typing import Any

from posattn_jax.data import tfds_features
from posattn_jax.system.errors import InputError


def find(name: str, folder: pathlib.Path) -> pathlib.Path | None:
    """Where `folder` holds a prepared set of this name, if it does."""
    return max((path.parent for path in (folder / name).glob("**/dataset_info.json")), default=None)


def files(folder: pathlib.Path) -> list[pathlib.Path]:
    """What a prepared set consists of."""
    return sorted(path for path in folder.iterdir() if path.is_file())


def lines(folder: pathlib.Path, split: str, language: str) -> Iterator[str]:
    """One language's side of each example, in the order of the set, without the white space around.

    Raises:
      InputError: the set has no such split or language, or cannot be read.
    """
    tfds_features.check(folder)
    import tensorflow_datasets as tfds  # takes seconds, and most runs do not read tfds

    try:
        builder = tfds.builder_from_directory(folder)
        features: Any = builder.info.features
        for what, given, allowed in (("split", split, builder.info.splits), ("language", language, features)):
            if given not in allowed:
                raise InputError(f'{folder}: no {what} "{given}": it has {", ".join(allowed)}')
        source = builder.as_data_source(split)
        for number in range(len(source)):
            yield " ".join(source[number][language].decode().split())
    except InputError:
        raise
    except Exception as error:  # whatever array_record and tfds raise for another format or a damaged file
        raise InputError(
            f"{folder}: cannot be read ({error}): prepare it again with --file_format=array_record"
        ) from error
