"""The base class of data sets, which a config's `data` describes, and what they need to know to be read."""

import dataclasses
import pathlib
from typing import Any

import numpy as np

from posattn_jax.axes import Sizes
from posattn_jax.data.pipeline.batches import Source
from posattn_jax.data.pipeline.checksums import Files
from posattn_jax.system.errors import InputError


@dataclasses.dataclass(frozen=True)
class Reading:
    """What a data set needs to know of the run that reads it.

    Attributes:
      seed: the seed of the run.
      cache: the folder of cached tokenizers and token ids.
      workdir: the run folder, which has the run's tokenizer; None: there is no run folder.
      evaluates: whether the run is evaluated. Then the test part is read too.
      pretrained: the folder of the run that it starts from, if there is one. It may be gone once the run has begun.
      places: the number of places in the model's tables; None: any length.
    """

    seed: int
    cache: pathlib.Path = pathlib.Path("data/cache")
    workdir: pathlib.Path | None = None
    evaluates: bool = False
    pretrained: pathlib.Path | None = None
    places: int | None = None


class DataSet:
    """A data set. It is a dataclass, whose fields are in the config.

    The sources that it loads `know` the values of fields of the model and of the task that a config leaves out.

    Attributes:
      name: the name of the set, for messages.
      classes: the names of its labels, in order; (): it has none.
    """

    name: str
    classes: tuple[str, ...] = ()

    def load(self, reading: Reading) -> dict[str, Any]:
        """Reads the sources for training and validation, "train" and "validation".

        For an evaluation, it also reads "test", if there is a test part; a test part without labels is "unlabelled".

        Raises:
          InputError: its files are missing or damaged, or a field does not fit them.
        """
        raise NotImplementedError

    def files(self) -> Files:
        """The files that `load` reads, including the test part, as far as they exist."""
        return {}

    def empty(self, workdir: pathlib.Path) -> Source:
        """A source without examples, for the run in `workdir`. The files of the data need not exist."""
        raise NotImplementedError

    def classes_of(self, workdir: pathlib.Path) -> tuple[str, ...]:
        """The names of the labels of the run in `workdir`, in order. The files of the data need not exist."""
        return self.classes

    def input_shape(self, source: Source) -> Sizes | None:
        """The grid that the examples of a source have in the layout and size of this data set; None: they have none."""
        return source.knows.get("input_shape")


def split(examples: Any, seed: int, train_share: float) -> tuple[Any, Any]:
    """Splits examples by a permutation drawn from the seed. The validation part has at least one."""
    order = np.random.default_rng(seed).permutation(len(examples))
    num_train = min(round(train_share * len(examples)), len(examples) - 1)
    return examples.select(order[:num_train]), examples.select(order[num_train:])


def limited(validation: Any, limit: int) -> Any:
    """The first `limit` examples of a validation part; 0: all. Raises InputError for a negative limit."""
    if limit < 0:
        raise InputError(f"data.validation_limit={limit}: expected 0, for all, or more")
    return validation.select(slice(limit or None))
