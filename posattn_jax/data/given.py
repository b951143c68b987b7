"""What a model of others reads: nothing to train on, but what it can be asked about."""

import dataclasses
import pathlib
from typing import Any, ClassVar

import numpy as np

from posattn_jax.data import sequences
from posattn_jax.data.data_set import DataSet, Reading
from posattn_jax.data.images import GridImages, ImageSet
from posattn_jax.data.sequences import Sentences
from posattn_jax.data.tokenizer import of_run
from posattn_jax.system.errors import InputError


@dataclasses.dataclass(frozen=True)
class Given(DataSet):
    """Inputs that a user has.

    Attributes:
      names: of the classes that the model tells, by number; (): it tells a number, or tokens.
    """

    names: tuple[str, ...] = ()

    @property
    def classes(self) -> tuple[str, ...]:
        return self.names

    def load(self, reading: Reading) -> dict[str, Any]:
        """InputError: there is nothing to train on."""
        raise InputError(f"data.kind={type(self).__name__}: an imported model, which is no run to train or evaluate")


@dataclasses.dataclass(frozen=True)
class GivenSentences(Given):
    """Sentences, or pairs of them, cut by the tokenizer of the run folder.

    Attributes:
      length: of a sequence, in tokens.
      names: see `Given`.
    """

    name: ClassVar[str] = "sentences"

    length: int = 128

    def __post_init__(self):
        sequences.check_length(self.length)

    def empty(self, workdir: pathlib.Path) -> Sentences:
        nothing = np.zeros(0, np.int32)
        return Sentences([], nothing, nothing, self.length, of_run(workdir), num_labels=len(self.names))


@dataclasses.dataclass(frozen=True)
class GivenImages(Given):
    """Images of any size, which are resized.

    Attributes:
      shape: height, width and channels, as the model meets them.
      mean, deviation: of each channel, or one of all: pixels (x - mean) / deviation, x from 0 to 1.
      names: see `Given`.
    """

    name: ClassVar[str] = "images"

    shape: tuple[int, ...] = (224, 224, 3)
    mean: tuple[float, ...] = (0.5,)
    deviation: tuple[float, ...] = (0.5,)

    def empty(self, workdir: pathlib.Path) -> GridImages:
        images = ImageSet(np.zeros((0, *self.shape), np.uint8), np.zeros(0, np.int64), len(self.names))
        return GridImages(images, mean=self.mean, deviation=self.deviation)
