"""Finds image files in folders, and reads them: each is cropped and resized to the size of the set."""

import pathlib
import warnings
from collections.abc import Iterable

import numpy as np
from PIL import Image, ImageOps

from posattn_jax.system.errors import InputError
from posattn_jax.system.files import files_below

FORMATS = ("PNG", "JPEG", "WEBP")
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")


def find(given: Iterable[str]) -> list[pathlib.Path | InputError]:
    """The given files, and all images below the given folders, sorted; an error for a folder without images."""
    found: list[pathlib.Path | InputError] = []
    for name in given:
        path = pathlib.Path(name)
        if not path.is_dir():
            found.append(path)
            continue
        images, wrong = below(path)
        found += [*images, *wrong] or [InputError(f"{name}: no {' or '.join(SUFFIXES)} below this folder")]
    return found


def below(folder: pathlib.Path) -> tuple[list[pathlib.Path], list[InputError]]:
    """As `files_below`, of which the files are those of images."""
    found, wrong = files_below(folder)
    return [each for each in found if each.suffix.lower() in SUFFIXES], wrong


def read(path: pathlib.Path, height: int, width: int, channels: int) -> np.ndarray:
    """Reads an image as [height, width, channels] uint8: the largest central part of these proportions, resized.

    Resizing is bicubic. The image is rotated by its Exif orientation. With 1 channel, colours become grey (ITU-R 601-2
    luma); with 3, grey is repeated. Transparent pixels are put on black. 16-bit values keep their upper 8 bits.

    Raises:
      InputError: the file cannot be read as PNG, JPEG or WebP, or `channels` is neither 1 nor 3.
    """
    if channels not in (1, 3):
        raise InputError(f"{path}: this run's images have {channels} channels: expected 1 or 3")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=FORMATS) as file:
                image = ImageOps.exif_transpose(file)
                if image.mode.startswith("I"):  # 16 bits of grey, which Pillow would cut off at 255
                    image = Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8))
                if image.has_transparency_data:
                    image = image.convert("RGBA")
                    image = Image.alpha_composite(Image.new("RGBA", image.size, "black"), image)
                image = image.convert("L" if channels == 1 else "RGB")
                fitted = ImageOps.fit(image, (width, height), Image.Resampling.BICUBIC)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        if isinstance(error, Image.UnidentifiedImageError):
            reason = "it is none of them"
        raise InputError(f"{path}: cannot be read as PNG, JPEG or WebP ({reason})") from error
    return np.asarray(fitted).reshape(height, width, channels)
