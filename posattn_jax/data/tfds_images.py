"""Image sets that tensorflow-datasets has prepared before. Reading them needs no TensorFlow; preparing them does."""

import dataclasses
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


@dataclasses.dataclass(frozen=True)
class PreparedImages:
    """A set with features "image" and "label", as an `image_sets.ImageRecord`.

    Attributes:
      name: of the set.
      sides, channels: of its images; a side None: not known without reading them.
      names: of its labels.
    """

    name: str
    sides: tuple[Any, ...]
    channels: int
    names: tuple[str, ...]

    def load(self, folder: pathlib.Path, split: str, download: bool = False) -> ImageSet:
        """Reads a split; InputError where there is none, or it cannot be read."""
        builder, features = _builder(self.name, folder)
        if split not in builder.info.splits:
            raise InputError(f'tfds set "{self.name}" has no split "{split}": it has {", ".join(builder.info.splits)}')
        try:
            source = builder.as_data_source(split)
            examples = [source[i] for i in range(len(source))]
        except Exception as error:  # whatever array_record and tfds raise for another format or a damaged file
            again = "prepare it again with --file_format=array_record"
            raise InputError(f'tfds set "{self.name}" in {folder} cannot be read ({error}): {again}') from error
        if len({example["image"].shape for example in examples}) != 1:
            raise InputError(f'tfds set "{self.name}": its images differ in size')
        return ImageSet(
            np.stack([example["image"] for example in examples]),
            np.array([example["label"] for example in examples], np.int64),
            features["label"].num_classes,
        )

    def files(self, folder: pathlib.Path, split: str) -> list[pathlib.Path]:
        """All that the set consists of."""
        return sorted(path for path in (folder / self.name).rglob("*") if path.is_file())


def record(name: str, folder: pathlib.Path) -> PreparedImages:
    """What a prepared set is like, known without reading its images.

    Raises:
      InputError: the set is not prepared in `folder`, or is no set of labelled images.
    """
    _, features = _builder(name, folder)
    *sides, channels = features["image"].shape
    return PreparedImages(name, tuple(sides), channels, tuple(features["label"].names))
