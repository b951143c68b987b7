"""Finds image files in folders, and reads them: each is cropped and resized to the size of the set."""

import io
import pathlib
import struct
import threading
import warnings
from collections.abc import Iterable

import numpy as np
from PIL import ExifTags, Image, ImageOps

from posattn_jax.system.errors import InputError
from posattn_jax.system.files import files_below

FORMATS = ("PNG", "JPEG", "WEBP")
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
TURNS = {  # by the Exif orientation
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_opening = threading.Lock()  # since `warnings.catch_warnings` is not for several threads


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

    Resizing is bicubic. The image is rotated by its Exif orientation, unless its Exif cannot be read. With 1 channel,
    colours become grey (ITU-R 601-2 luma); with 3, grey is repeated. Transparent pixels are put on black. 16-bit values
    keep their upper 8 bits. Of an animation, the first frame is read.

    Raises:
      InputError: the file cannot be read as PNG, JPEG or WebP, or `channels` is neither 1 nor 3.
    """
    if channels not in (1, 3):
        raise InputError(f"{path}: this run's images have {channels} channels: expected 1 or 3")
    try:
        with _opened(path) as file:
            file.load()
            image, turn = _on_black(file, path), _turn(file)
        if image.mode.startswith("I"):  # 16 bits of grey, which Pillow would cut off at 255
            image = Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8))
        image = image.convert("L" if channels == 1 else "RGB")
        image = image if turn is None else image.transpose(turn)
        fitted = ImageOps.fit(image, (width, height), Image.Resampling.BICUBIC)
    except Exception as error:  # of a damaged file, Pillow raises any
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        if isinstance(error, Image.UnidentifiedImageError):
            reason = "it is none of them"
        reason = " ".join(reason.split()) or type(error).__name__
        raise InputError(f"{path}: cannot be read as PNG, JPEG or WebP ({reason})") from error
    return np.asarray(fitted).reshape(height, width, channels)


def _opened(path: pathlib.Path) -> Image.Image:
    """The image of a file, whose pixels are not read yet."""
    with _opening, warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            return Image.open(path, formats=FORMATS)
        except Exception:  # Pillow reads some of a JPEG's Exif to open it
            data = path.read_bytes()
            if not data.startswith(b"\xff\xd8"):
                raise
            return Image.open(io.BytesIO(_without_metadata(data)), formats=("JPEG",))


def _without_metadata(data: bytes) -> bytes:
    """A JPEG without its segments APP1 and APP2, which have Exif, XMP, and the index of several pictures."""
    kept, at = [data[:2]], 2
    while data[at : at + 1] == b"\xff" and data[at + 1 : at + 2] not in (b"\xda", b""):  # up to the scan
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if data[at + 1] not in (0xE1, 0xE2):
            kept.append(data[at:end])
        at = end
    return b"".join([*kept, data[at:]])


def _turn(image: Image.Image) -> Image.Transpose | None:
    """How an image is to be turned by its Exif orientation; None: it is not, or its Exif cannot be read."""
    try:
        return TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # Pillow raises any
        return None


def _on_black(image: Image.Image, path: pathlib.Path) -> Image.Image:
    """An image with its transparent pixels on black.

    Raises:
      ValueError: pixels may have the transparent colour of a PNG in 16 bits, of which Pillow keeps 8.
    """
    transparent = _transparent_colour(path)
    if transparent is None:
        if not image.has_transparency_data:
            return image
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "black"), image)
    depth, colour = transparent
    pixels = np.array(image.convert("L") if image.mode == "1" else image)
    if is_reduced := depth == 16 and pixels.ndim == 3:
        colour = colour >> 8
    elif depth < 16:
        colour = colour * (255 // (2**depth - 1))  # as Pillow scales grey of less than 8 bits
    chosen = (pixels.reshape(*pixels.shape[:2], -1) == colour).all(-1)
    if is_reduced and chosen.any():
        raise ValueError("a transparent colour of 16 bits is not supported: save it with alpha, or with 8 bits")
    pixels[chosen] = 0
    return Image.fromarray(pixels)


def _transparent_colour(path: pathlib.Path) -> tuple[int, np.ndarray] | None:
    """The bit depth of a PNG of grey or RGB, and its transparent grey [1] or colour [3]; None: it has none.

    Pillow neither scales this grey as the pixels, nor compares it in 16 bits. Bits above the depth do not count: see
    "tRNS" in the specification of PNG, section 11.3.2.1.
    """
    with path.open("rb") as file:
        if file.read(8) != b"\x89PNG\r\n\x1a\n":
            return None
        depth = kind = 0
        while True:
            length, name = struct.unpack(">I4s", file.read(8))
            if name == b"IDAT" or kind not in (0, 2):
                return None
            data = file.read(length + 4)[:-4]  # without the checksum
            if name == b"IHDR":
                depth, kind = data[8:10]
            elif name == b"tRNS":
                samples = np.frombuffer(data[: 2 if kind == 0 else 6], ">u2").astype(np.uint16)
                return depth, samples & (2**depth - 1)
