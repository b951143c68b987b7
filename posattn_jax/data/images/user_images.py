"""The common part of `ImageFolder` and `Arrays`: labelled images, series and volumes of a user."""

import dataclasses
import pathlib
from typing import Any

import numpy as np

from posattn_jax.axes import Sizes
from posattn_jax.data.images import GridImages, ImageSet
from posattn_jax.data.pipeline import user_data
from posattn_jax.data.pipeline.data_set import DataSet, Reading, limited, split


@dataclasses.dataclass(frozen=True)
class NamedImages(GridImages):
    """Images on a grid. A run saves the names of their labels, and the shape and kind of an image.

    Attributes:
      names: the names of the labels, in order.
      images, layout, pool, mean, deviation: see `GridImages`.
    """

    names: tuple[str, ...] = ()

    @property
    def about(self) -> dict[str, Any]:
        """What a run saves about the images."""
        shape = [int(size) for size in self.images.images.shape[1:]]
        return {"classes": list(self.names), "shape": shape, "max_value": self.images.max_value}

    def save(self, workdir: pathlib.Path) -> None:
        """Saves `about` in the run folder."""
        user_data.save(workdir, self.about)


class UserImages(DataSet):
    """Labelled images on disk, in parts. Without a validation part, it is a fifth of the train part.

    A subclass defines how a part is read.
    """

    validation_limit: int

    def parts(self) -> dict[str, pathlib.Path]:
        """The paths of "train" and, if they exist, of "validation" and "test"."""
        raise NotImplementedError

    def read(self, part: str, path: pathlib.Path, known: dict[str, Any] | None) -> NamedImages:
        """Reads a part. `known` is what is known from the run or from the train part, see `about`; None: nothing."""
        raise NotImplementedError

    def load(self, reading: Reading) -> dict[str, Any]:
        known, sources = user_data.saved(reading.workdir), {}
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
        chosen = limited(judged_by.images, self.validation_limit)
        found, most = (len(np.unique(images.labels)) for images in (chosen, judged_by.images))
        if found < most:  # files of a folder are sorted by class
            first = f"the first {len(chosen):,} of {len(judged_by):,}"
            print(f"validation: {first} are of {found} of {most} classes, and no others are judged by")
        return sources | {"validation": dataclasses.replace(judged_by, images=chosen)}

    def lay_out(self, images: ImageSet, names: tuple[str, ...]) -> NamedImages:
        """The source of the given images, in the layout of this data set."""
        raise NotImplementedError

    def input_shape(self, source: Any) -> Sizes:
        return self.lay_out(source.images, source.names).knows["input_shape"]

    def classes_of(self, workdir: pathlib.Path) -> tuple[str, ...]:
        return tuple(user_data.of_run(workdir)["classes"])

    def empty(self, workdir: pathlib.Path) -> NamedImages:
        about = user_data.of_run(workdir)
        names, max_value = tuple(about["classes"]), about["max_value"]
        images = np.zeros((0, *about["shape"]), np.float32 if max_value is None else np.uint8)
        return self.lay_out(ImageSet(images, np.zeros(0, np.int64), len(names), max_value), names)
