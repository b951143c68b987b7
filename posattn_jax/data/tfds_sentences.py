"""GLUE's tasks as tensorflow-datasets has prepared them before."""

import pathlib
from collections.abc import Iterator, Sequence

from posattn_jax.data import tfds_features
from posattn_jax.system.errors import InputError


def find(name: str, folder: pathlib.Path) -> pathlib.Path | None:
    """Where `folder` holds a prepared task of this name, if it does."""
    return max((path.parent for path in (folder / "glue" / name).glob("**/dataset_info.json")), default=None)


def read(folder: pathlib.Path, split: str, features: Sequence[str]) -> Iterator[tuple[tuple[str, ...], float]]:
    """The sentences and the label of each example, in the order of the official files; 0 where it is not known.

    Raises:
      InputError: the set cannot be read.
    """
    tfds_features.check(folder)
    import tensorflow_datasets as tfds  # takes seconds, and most runs do not read tfds

    try:
        source = tfds.builder_from_directory(folder).as_data_source(split)
        examples = sorted((source[i] for i in range(len(source))), key=lambda example: example["idx"])
        for example in examples:
            yield tuple(example[each].decode() for each in features), max(0.0, float(example["label"]))
    except Exception as error:  # whatever array_record and tfds raise for another format or a damaged file
        raise InputError(
            f"{folder}: cannot be read ({error}): prepare it again with --file_format=array_record"
        ) from error
