"""Moving MNIST: one digit an image at a place of its own, or one digit a clip that moves in one of eight directions.

The setting of Fan 2025 with still images; clips after Srivastava, Mansimov and Salakhutdinov 2015, but labelled.
"""

import dataclasses
from typing import ClassVar, Literal

import numpy as np

from posattn_jax.data.images import ImageSet
from posattn_jax.data.mnist import SIDE
from posattn_jax.system.errors import InputError

# (rows, columns) a frame of each label: right, and on clockwise to right and up
DIRECTIONS = np.array([(0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1), (-1, 0), (-1, 1)])
DIRECTION_NAMES = ("right", "down right", "down", "down left", "left", "up left", "up", "up right")


@dataclasses.dataclass(frozen=True)
class MovingDigits:
    """Digits on black canvases, drawn when they are asked for: all at once would take gigabytes.

    Indexed by ids it is a part of itself; `np.asarray` draws it.

    Attributes:
      digits: [n, 28, 28, 1] uint8.
      places: the row and column of each digit's upper left corner: [n, 2], or [n, frames, 2] in clips.
      canvas: the height and width of a canvas, in pixels.
    """

    digits: np.ndarray
    places: np.ndarray
    canvas: int

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, canvas, canvas, 1), or (n, frames, canvas, canvas, 1) of clips."""
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
    """Where images of a digit may be on a canvas.

    Attributes:
      canvas: height and width in pixels.
      shift: "none": anywhere on the canvas; "halves": training and validation digits lie wholly in its left half, test
        digits in its right half.
      seed: of the places and movements, the same for runs of all seeds. Those of an image are drawn from it, the split
        and the image's number alone.
    """

    canvas: int = 64
    shift: Literal["none", "halves"] = "none"
    seed: int = 0

    def __post_init__(self):
        if self.seed < 0:
            raise ValueError(f"seed={self.seed}: expected 0 or more")

    def _region(self, split: str, room: int) -> tuple[np.ndarray, np.ndarray]:
        """The first corner of a split's part of the canvas, and how far a digit can be moved from there: both [2].

        InputError where that is less than `room`.
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
        """[n, draws] in [0, 1): the first rows are the same whatever the number of images."""
        return np.random.default_rng([self.seed, ("train", "test").index(split)]).random((num_images, num_draws))


@dataclasses.dataclass(frozen=True)
class Stills(Scene):
    """Each digit at a place drawn uniformly, with its own label; canvas, shift, seed: see `Scene`."""

    @property
    def sides(self) -> tuple[int, ...]:
        """Of an image."""
        return self.canvas, self.canvas

    def of(self, digits: ImageSet, split: Literal["train", "test"]) -> ImageSet:
        """The stills of some digits; InputError where the canvas is too small."""
        first, room = self._region(split, 0)
        places = first + _uniform(self._chances(split, len(digits), 2), room + 1)
        return dataclasses.replace(digits, images=MovingDigits(digits.images, places, self.canvas))


@dataclasses.dataclass(frozen=True)
class Clips(Scene):
    """Each digit moving steadily within the canvas; the label is the number of its direction in `DIRECTIONS`.

    Attributes:
      frames: of a clip.
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
        """Of a clip."""
        return self.frames, self.canvas, self.canvas

    def of(self, digits: ImageSet, split: Literal["train", "test"]) -> ImageSet:
        """The clips of some digits.

        Directions, speeds and then paths are drawn uniformly. Speeds are whole numbers of pixels a frame and row or
        column, up to the one that crosses half of the room. A path backwards is as likely as forwards, so only the
        order of the frames tells the two directions apart.

        Raises:
          InputError: a canvas too small for a digit that moves.
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
            digits,
            images=MovingDigits(digits.images, places, self.canvas),
            labels=labels,
            num_classes=len(DIRECTIONS),
        )


def _uniform(chances: np.ndarray, counts: np.ndarray | int) -> np.ndarray:
    """Integers from 0 to counts - 1, which broadcast."""
    return np.floor(chances * counts).astype(np.int64)
