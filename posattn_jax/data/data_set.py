"""What a config's `data` is: a data set, and how a run reads it."""

import dataclasses
import pathlib
from typing import Any

import numpy as np

from posattn_jax.data.batches import Source
from posattn_jax.data.remembered import Files


@dataclasses.dataclass(frozen=True)
class Reading:
    """What reading is told of the run.

    Attributes:
      seed: of the run.
      cache: the folder of tokenizers, and of texts as token ids.
      workdir: the run folder, whose tokenizer is that of its text; None: there is none.
      evaluates: whether the run is evaluated, which asks for the test part too.
      pretrained: the folder of the run that it starts from, where there is one.
      places: the most that the model has a place for; None: any length.
    """

    seed: int
    cache: pathlib.Path = pathlib.Path("data/cache")
    workdir: pathlib.Path | None = None
    evaluates: bool = False
    pretrained: pathlib.Path | None = None
    places: int | None = None


class DataSet:
    """A data set, a dataclass: its fields are what a config says.

    A source that it loads `knows` what the fields of the model and of the task are that a config leaves out.

    Attributes:
      name: of the set, for people.
      classes: the names of its labels, by number; (): it has none.
    """

    name: str
    classes: tuple[str, ...] = ()

    def load(self, reading: Reading) -> dict[str, Any]:
        """The sources that a run trains on and is judged by, "train" and "validation".

        For an evaluation also "test", where there is one; without labels it is "unlabelled".

        Raises:
          InputError: its files are missing or damaged, or a field does not fit them.
        """
        raise NotImplementedError

    def files(self) -> Files:
        """What `load` reads, the test part too, as far as it is there."""
        return {}

    def empty(self, workdir: pathlib.Path) -> Source:
        """A source without an example, for the run in `workdir`; its files need not be there."""
        raise NotImplementedError

    def classes_of(self, workdir: pathlib.Path) -> tuple[str, ...]:
        """The names of the labels of the run in `workdir`, by number; the files need not be there."""
        return self.classes

    def again(self, source: Source) -> Source:
        """The examples of a source, laid out as this data set says."""
        return source


def split(examples: Any, seed: int, train_share: float) -> tuple[Any, Any]:
    """Splits into train and validation, at least one example, by a permutation drawn from the seed."""
    order = np.random.default_rng(seed).permutation(len(examples))
    num_train = min(round(train_share * len(examples)), len(examples) - 1)
    return examples.select(order[:num_train]), examples.select(order[num_train:])
