"""Moving MNIST: one digit per image at a random place, or one digit per clip, which moves in one of eight directions.

The setting of Fan 2025 with still images; clips after Srivastava, Mansimov and Salakhutdinov 2015, but labelled.
"""

import dataclasses
from typing import ClassVar, Literal

import numpy as np

from posattn_jax.data.images import ImageSet
from posattn_jax.data.images.mnist import SIDE
from posattn_jax.system.errors import InputError

# (rows, columns) per frame for each label: from right, clockwise, to up and right
DIRECTIONS = np.array([(0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1), (-1, 0), (-1, 1)])
DIRECTION_NAMES = ("right", "down right", "down", "down left", "left", "up left", "up", "up right")


@dataclasses.dataclass(frozen=True)
class MovingDigits:
    """Digits on black canvases. They are drawn only when they are read, since all at once would take gigabytes.

    An index with ids selects some of them. `np.asarray` draws them.

    Attributes:
      digits: [n, 28, 28, 1] uint8.
      places: the row and column of each digit's upper left corner: [n, 2], or [n, frames, 2] for clips.
      canvas: the height and width of a canvas, in pixels.
    """

    digits: np.ndarray
    places: np.ndarray
    canvas: int

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, canvas, canvas, 1), or (n, frames, canvas, canvas, 1) for clips."""
        return (*self.places.shape[:-1], self.canvas, self.canvas, 1)

    def __getitem__(self, ids: np.ndarray | slice) -> "MovingDigits":
        return dataclasses.replace(self, digits=self.digits[ids], places=self.places[ids])

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        corners = self.places.reshape(-1, 2)
        drawn = np.zeros((len(corners), self.canvas, self.canvas, 1), dtype or np.uint8)
        rows, columns = np.moveaxis(corners[:, :, None] + np.arange(SIDE), 1, 0)
        frames = len(corners) // max(1, len(self.digits))
        drawn[np.arange(len(corners))[:, None, None], rows[:, :, None], columns[:, None]] = self.digits.repeat(
            frames, 0
        )
        return drawn.reshape(self.shape)


@dataclasses.dataclass(frozen=True)
class Scene:
    """Where a digit may be on a canvas.

    Attributes:
      canvas: the height and width in pixels.
      shift: "none": anywhere on the canvas; "halves": training and validation digits lie completely in the left half,
        test digits in the right half.
      seed: the seed of places and movements, which does not depend on the seed of a run. The draws of an image depend
        only on it, on the split and on the number of the image.
    """

    canvas: int = 64
    shift: Literal["none", "halves"] = "none"
    seed: int = 0

    def __post_init__(self):
        if self.seed < 0:
            raise ValueError(f"seed={self.seed}: expected 0 or more")

    def _region(self, split: str, room: int) -> tuple[np.ndarray, np.ndarray]:
        """The upper left corner of a split's part of the canvas, and how far a digit can move from there: both [2].

        Raises InputError if that is less than `room`.
        """
        left, width = 0, self.canvas
        if self.shift == "halves":
            left, width = (0 if split == "train" else self.canvas - self.canvas // 2), self.canvas // 2
        if width - SIDE < room:
            least = (SIDE + room) * (1 if self.shift == "none" else 2)
            moving = f" and frames={self.frames}" if isinstance(self, Clips) else ""
            expected = f'expected at least {least} with shift="{self.shift}"{moving}'
            raise InputError(f"data.scene.canvas={self.canvas}: {expected}")
        return np.array([0, left]), np.array([self.canvas - SIDE, width - SIDE])

    def _chances(self, split: str, num_images: int, num_draws: int) -> np.ndarray:
        """[n, draws] in [0, 1). The first rows are the same for any number of images."""
        return np.random.default_rng([self.seed, ("train", "test").index(split)]).random((num_images, num_draws))


@dataclasses.dataclass(frozen=True)
class Stills(Scene):
    """Each digit at a uniformly random place, with its own label. For canvas, shift and seed see `Scene`."""

    @property
    def sides(self) -> tuple[int, ...]:
        """The sides of an image."""
        return self.canvas, self.canvas

    def of(self, digits: ImageSet, split: Literal["train", "test"]) -> ImageSet:
        """The stills of some digits. Raises InputError if the canvas is too small."""
        first, room = self._region(split, 0)
        places = first + _uniform(self._chances(split, len(digits), 2), room + 1)
        return dataclasses.replace(digits, images=MovingDigits(digits.images, places, self.canvas))


@dataclasses.dataclass(frozen=True)
class Clips(Scene):
    """Each digit moves with constant velocity on the canvas. The label is the index of its direction in `DIRECTIONS`.

    Attributes:
      frames: the number of frames of a clip.
      canvas, shift, seed: see `Scene`.
    """

    frames: int = 8

    names: ClassVar[tuple[str, ...]] = DIRECTION_NAMES

    def __post_init__(self):
        super().__post_init__()
        if self.frames < 2:
            raise ValueError(f"frames={self.frames}: expected at least 2")

    @property
    def sides(self) -> tuple[int, ...]:
        """The sides of a clip."""
        return self.frames, self.canvas, self.canvas

    def of(self, digits: ImageSet, split: Literal["train", "test"]) -> ImageSet:
        """The clips of some digits.

        Directions, speeds and then paths are drawn uniformly. Speeds are whole numbers of pixels per frame, along rows
        and columns, up to the speed that crosses half of the room. A path is as likely as the same path backwards, so
        only the order of the frames distinguishes opposite directions.

        Raises:
          InputError: the canvas is too small for a moving digit.
        """
        steps = self.frames - 1
        first, room = self._region(split, 2 * steps)
        chances = self._chances(split, len(digits), 4)
        labels = _uniform(chances[:, 0], len(DIRECTIONS))
        speeds = 1 + _uniform(chances[:, 1], int(room.min()) // (2 * steps))
        velocities = speeds[:, None] * DIRECTIONS[labels]
        travels = velocities * steps
        starts = first + np.maximum(0, -travels) + _uniform(chances[:, 2:], room + 1 - np.abs(travels))
        places = starts[:, None] + velocities[:, None] * np.arange(self.frames)[:, None]
        return dataclasses.replace(
            digits, images=MovingDigits(digits.images, places, self.canvas), labels=labels, num_classes=len(DIRECTIONS)
        )


def _uniform(chances: np.ndarray, counts: np.ndarray | int) -> np.ndarray:
    """Integers from 0 to counts - 1, for chances in [0, 1). The arguments broadcast."""
    return np.floor(chances * counts).astype(np.int64)
