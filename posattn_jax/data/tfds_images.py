"""Image sets that tensorflow-datasets has prepared before. Reading them needs no TensorFlow; preparing them does."""

import pathlib
from typing import Any

import numpy as np

from posattn_jax.data import tfds_features
from posattn_jax.data.images import ImageSet
from posattn_jax.system.errors import InputError


def is_prepared(name: str, folder: pathlib.Path) -> bool:
    """Whether `folder` holds a prepared set of this name."""
    return any((folder / name).glob("**/dataset_info.json"))


def _builder(name: str, folder: pathlib.Path) -> tuple[Any, Any]:
    """What reads a prepared set, and its features, of which "image" and "label" are asked for.

    Raises:
      InputError: the set is not prepared in `folder`, or has not both.
    """
    if not is_prepared(name, folder):
        raise InputError(
            f'tfds set "{name}" is not prepared in data.dir={folder}: install the extra "prepare" and run '
            f"tfds build {name} --data_dir={folder} --file_format=array_record"
        )
    tfds_features.check(folder / name)
    import tensorflow_datasets as tfds  # takes seconds, and most runs do not read tfds

    builder = tfds.builder(name, data_dir=folder)
    features: Any = builder.info.features
    if features is None or not {"image", "label"} <= set(features):
        raise InputError(f'tfds set "{name}" has no "image" and "label"')
    return builder, features


def describe(name: str, folder: pathlib.Path) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Of a prepared set, what its images have, (*sides, channels), and its labels' names; raises as `load`."""
    _, features = _builder(name, folder)
    if None in features["image"].shape:
        raise InputError(f'tfds set "{name}": its images differ in size')
    return tuple(features["image"].shape), tuple(features["label"].names)


def load(name: str, folder: pathlib.Path, split: str) -> ImageSet:
    """Reads a split of a prepared set with features "image" and "label".

    Raises:
      InputError: the set is not prepared in `folder`, or is no set of labelled images of one size.
    """
    builder, features = _builder(name, folder)
    if split not in builder.info.splits:
        raise InputError(f'tfds set "{name}" has no split "{split}": it has {", ".join(builder.info.splits)}')
    try:
        source = builder.as_data_source(split)
        examples = [source[i] for i in range(len(source))]
    except Exception as error:  # whatever array_record and tfds raise for another format or a damaged file
        raise InputError(
            f'tfds set "{name}" in {folder} cannot be read ({error}): prepare it again with --file_format=array_record'
        ) from error
    if len({example["image"].shape for example in examples}) != 1:
        raise InputError(f'tfds set "{name}": its images differ in size')
    return ImageSet(
        np.stack([example["image"] for example in examples]),
        np.array([example["label"] for example in examples], np.int64),
        features["label"].num_classes,
    )
