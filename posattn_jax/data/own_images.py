"""Labelled images, series and volumes of a user's own: what `ImageFolder` and `Arrays` have in common."""

import dataclasses
import pathlib
from typing import Any

import numpy as np

from posattn_jax.data import own
from posattn_jax.data.data_set import DataSet, Reading, split
from posattn_jax.data.images import GridImages, ImageSet


@dataclasses.dataclass(frozen=True)
class NamedImages(GridImages):
    """Images on a grid of which a run keeps the names of the labels, and what one of them is like.

    Attributes:
      names: of the labels, by number.
      images, layout, pool, mean, deviation: see `GridImages`.
    """

    names: tuple[str, ...] = ()

    @property
    def about(self) -> dict[str, Any]:
        """What a run keeps."""
        shape = [int(size) for size in self.images.images.shape[1:]]
        return {"classes": list(self.names), "shape": shape, "max_value": self.images.max_value}

    def keep(self, workdir: pathlib.Path) -> None:
        """Saves `about` in the run folder."""
        own.keep(workdir, self.about)


class OwnImages(DataSet):
    """Parts of labelled images on disk; without a part to judge by it is a fifth of what there is to train on.

    A subclass says what a part is read as.
    """

    validation_limit: int

    def parts(self) -> dict[str, pathlib.Path]:
        """Where "train", and if they are there "validation" and "test", lie."""
        raise NotImplementedError

    def read(self, part: str, path: pathlib.Path, known: dict[str, Any] | None) -> NamedImages:
        """A part; `known` is what the run, or the train part, is `about`: None where it is to be found."""
        raise NotImplementedError

    def load(self, reading: Reading) -> dict[str, Any]:
        known, sources = own.kept(reading.workdir), {}
        for part, path in self.parts().items():
            if part != "test" or reading.evaluates:
                sources[part] = self.read(part, path, known)
                known = sources[part].about
        if "validation" not in sources:
            whole = sources["train"]
            halves = split(whole.images, reading.seed, train_share=0.8)
            for part, images in zip(("train", "validation"), halves, strict=True):
                sources[part] = dataclasses.replace(whole, images=images)
        judged_by = sources["validation"]
        limited = judged_by.images.select(slice(self.validation_limit or None))
        return sources | {"validation": dataclasses.replace(judged_by, images=limited)}

    def lay_out(self, images: ImageSet, names: tuple[str, ...]) -> NamedImages:
        """The source of images."""
        raise NotImplementedError

    def again(self, source: Any) -> NamedImages:
        return self.lay_out(source.images, source.names)

    def classes_of(self, workdir: pathlib.Path) -> tuple[str, ...]:
        return tuple(own.of_run(workdir)["classes"])

    def empty(self, workdir: pathlib.Path) -> NamedImages:
        about = own.of_run(workdir)
        names, max_value = tuple(about["classes"]), about["max_value"]
        images = np.zeros((0, *about["shape"]), np.float32 if max_value is None else np.uint8)
        return self.lay_out(ImageSet(images, np.zeros(0, np.int64), len(names), max_value), names)
