"""Every set of labelled images by its name."""

import dataclasses
import pathlib
from typing import Literal

from posattn_jax.data import digits, mnist, tfds_images
from posattn_jax.data.cifar import CIFAR10, CIFAR100
from posattn_jax.data.images import ImageSet
from posattn_jax.data.moving_mnist import DIRECTION_NAMES, Scene
from posattn_jax.system.errors import InputError

OFFICIAL = {"mnist": mnist, "cifar10": CIFAR10, "cifar100": CIFAR100}  # from their own files
NAMES = ("digits", *OFFICIAL, "moving_mnist", "moving_mnist_clips")
FIGURES = tuple("0123456789")


@dataclasses.dataclass(frozen=True)
class Kind:
    """What the images of a set are like, known without reading them.

    Attributes:
      sides: height and width, before them frames in clips.
      channels: of a pixel.
      names: of the labels, by number.
    """

    sides: tuple[int, ...]
    channels: int
    names: tuple[str, ...]


def kind(name: str, folder: pathlib.Path, scene: Scene) -> Kind:
    """The kind of a set; of one that tensorflow-datasets has prepared it is read in `folder`. Arguments as `load`."""
    known = {
        "digits": Kind((8, 8), 1, FIGURES),
        "mnist": Kind((mnist.SIDE, mnist.SIDE), 1, FIGURES),
        "moving_mnist": Kind((scene.canvas, scene.canvas), 1, FIGURES),
        "moving_mnist_clips": Kind((scene.frames, scene.canvas, scene.canvas), 1, DIRECTION_NAMES),
        "cifar10": Kind((32, 32), 3, CIFAR10.names),
        "cifar100": Kind((32, 32), 3, CIFAR100.names),
    }
    if name in known:
        return known[name]
    if not name.startswith("tfds/"):
        raise InputError(f'data.name="{name}": expected {", ".join(NAMES)} or tfds/NAME')
    (*sides, channels), names = tfds_images.describe(name.removeprefix("tfds/"), folder)
    return Kind(tuple(sides), channels, names)


def load(
    name: str,
    folder: pathlib.Path,
    split: Literal["train", "test"],
    download: bool,
    scene: Scene,
) -> ImageSet | None:
    """Reads one split, as the set's authors divide it; None where they do not.

    Args:
      name: one of `NAMES`, or tfds/NAME for a set that tensorflow-datasets has prepared.
      folder: where the files are.
      split: "train" or "test".
      download: whether to fetch official files that are not found.
      scene: where moving digits may be.

    Raises:
      InputError: no such name, or its files are missing or damaged.
    """
    if name == "digits":
        return digits.load() if split == "train" else None
    if name in ("moving_mnist", "moving_mnist_clips"):
        make = scene.stills if name == "moving_mnist" else scene.clips
        return make(load("mnist", folder, split, download, scene), split)
    if name.startswith("tfds/"):
        return tfds_images.load(name.removeprefix("tfds/"), folder, split)
    if name not in OFFICIAL:
        raise InputError(f'data.name="{name}": expected {", ".join(NAMES)} or tfds/NAME')
    if tfds_images.is_prepared(name, folder):
        return tfds_images.load(name, folder, split)
    return OFFICIAL[name].load(folder, split, download)


def files(name: str, folder: pathlib.Path) -> list[pathlib.Path]:
    """What `load` reads, of both splits, as far as it is there."""
    name = {"moving_mnist": "mnist", "moving_mnist_clips": "mnist"}.get(name, name)
    prepared = name.removeprefix("tfds/")
    if name != "digits" and tfds_images.is_prepared(prepared, folder):
        return sorted(path for path in (folder / prepared).rglob("*") if path.is_file())
    if name not in OFFICIAL:
        return []
    return sorted({path for split in ("train", "test") for path in OFFICIAL[name].files(folder, split)})
