"""Images with broken parts: those whose pixels are whole are read, others are named."""

import io
import itertools
import re
import struct
import warnings
import zlib

import numpy as np
import pytest
from PIL import Image

from posattn_jax.data.images import image_files
from posattn_jax.data.images.image_folder import ImageFolder
from posattn_jax.data.pipeline.data_set import Reading
from posattn_jax.system.errors import InputError
from tests.support.slow import slow

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 9, 3)).astype(np.uint8)
FORMATS = {"JPEG": {"quality": 95}, "PNG": {}, "WEBP": {"lossless": True}}


def saved(format, exif=b""):
    file = io.BytesIO()
    Image.fromarray(PIXELS).save(file, format, exif=exif, **FORMATS[format])
    return file.getvalue()


def read(path, data):
    path.write_bytes(data)
    return image_files.read(path, 6, 9, 3)


def tiff(*tags):
    """Exif with the given entries: tag, type, number of values, and the four bytes of these or of their offset."""
    return b"Exif\0\0MM\0*\0\0\0\x08" + struct.pack(">H", len(tags)) + b"".join(tags) + bytes(4)


def turned_left(path, format):
    """The pixels of the file without its Exif, turned as by orientation 3."""
    return read(path, saved(format))[::-1, ::-1]


ORIENTATION = struct.pack(">HHIHH", 0x0112, 3, 1, 3, 0)


@pytest.mark.parametrize("format", FORMATS)
def test_a_resolution_that_cannot_be_written(tmp_path, format):
    """XResolution is SRATIONAL (-1, 0). The orientation next to it holds."""
    entry = struct.pack(">HHII", 0x011A, 10, 1, 38)
    exif = tiff(ORIENTATION, entry) + struct.pack(">ii", -1, 0)
    np.testing.assert_array_equal(read(tmp_path / "a", saved(format, exif)), turned_left(tmp_path / "b", format))


@pytest.mark.parametrize(
    "entry",
    [
        struct.pack(">HHII", 0x011A, 2, 1, 0),  # a resolution that is an empty text: Pillow reads it to open a JPEG
        struct.pack(">HHII", 0x0112, 2, 9, 2**31),  # an orientation that is a text, outside of the Exif
        struct.pack(">HHII", 0x0112, 5, 2**30, 8),
        struct.pack(">HHIHH", 0x0112, 3, 1, 9, 0),
    ],
)
@pytest.mark.parametrize("format", FORMATS)
def test_exif_that_cannot_be_read_turns_nothing(tmp_path, format, entry):
    unit = struct.pack(">HHIHH", 0x0128, 3, 1, 2, 0)
    found = read(tmp_path / "a", saved(format, tiff(entry, unit)))
    np.testing.assert_array_equal(found, read(tmp_path / "b", saved(format)))


@pytest.mark.parametrize("number", [150, slow(4000)])
@pytest.mark.parametrize("format", FORMATS)
def test_any_exif(tmp_path, format, number):
    """With changed bytes in its Exif, a file is read all the same, turned or not."""
    image = Image.fromarray(PIXELS)
    exif = image.getexif()
    exif[0x0112], exif[0x011A], exif[0x011B], exif[0x0128], exif[0x010F] = 6, 72.0, 0.5, 2, "maker"
    exif.get_ifd(0x8769).update({0x829A: 0.01, 0x9000: b"0230", 0x8827: 100})
    exif.get_ifd(0x8825).update({1: "N", 2: (1.0, 2.0, 3.0)})
    given = exif.tobytes()
    whole, text = saved(format, given), given.removeprefix(b"Exif\0\0")
    start, plain = whole.index(text), read(tmp_path / "plain", saved(format))
    turns = [read(tmp_path / "turned", saved(format, tiff(ORIENTATION[:9] + bytes([i]) + bytes(2)))) for i in range(9)]
    np.testing.assert_array_equal(turns[1], plain)
    rng = np.random.default_rng(1)
    for _ in range(number):
        data = bytearray(whole)
        for place in rng.integers(len(text), size=rng.integers(1, 5)):
            data[start + place] = rng.choice([0, 1, 2, 3, 5, 10, 255, rng.integers(256)])
        if format == "PNG":  # its chunk has a checksum
            data[start + len(text) : start + len(text) + 4] = struct.pack(
                ">I", zlib.crc32(b"eXIf" + data[start : start + len(text)])
            )
        found = read(tmp_path / "a", data)
        assert any(np.array_equal(found, each) for each in turns)


@pytest.mark.parametrize("number", [150, slow(4000)])
@pytest.mark.parametrize("format", FORMATS)
def test_any_bytes(tmp_path, format, number):
    """A damaged file is read, or named in one line."""
    whole, rng, wrong = saved(format, tiff(ORIENTATION)), np.random.default_rng(2), []
    for _ in range(number):
        data = bytearray(whole)
        for place in rng.integers(len(data), size=rng.integers(1, 5)):
            data[place] = rng.integers(256)
        data = data[: rng.integers(len(data))] if rng.random() < 0.3 else data
        try:
            assert read(tmp_path / "a.png", data).shape == (6, 9, 3)
        except InputError as error:
            wrong.append(str(error))
    assert 0.2 * number < len(wrong) < number
    one_line = rf"{tmp_path}/a.png: cannot be read as PNG, JPEG or WebP \(.+\)"
    assert [each for each in wrong if not re.fullmatch(one_line, each)] == []


@pytest.mark.parametrize("error", [AttributeError, MemoryError, RuntimeError, TypeError("a\nb"), struct.error("c")])
def test_any_error_is_named(tmp_path, monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(Image.Image, "convert", fail)
    reason = error.__name__ if isinstance(error, type) else " ".join(str(error).split())
    with pytest.raises(InputError, match=rf"{tmp_path}/a: .*\({reason}\)"):
        read(tmp_path / "a", saved("PNG"))


def test_broken_images_can_be_skipped(tmp_path, monkeypatch, capsys):
    """In the threads of a folder: empty, cut, of another format, too large."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    gif, before = io.BytesIO(), list(warnings.filters)
    Image.fromarray(PIXELS).save(gif, "GIF")
    large = io.BytesIO()
    Image.fromarray(np.zeros((11, 11), np.uint8)).save(large, "PNG")
    wrong = [b"", saved("PNG")[:80], saved("JPEG")[:300], saved("WEBP")[:60], gif.getvalue(), large.getvalue()]
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number, data in enumerate(8 * [*wrong, saved("PNG")]):
            (tmp_path / name / f"{number}.png").write_bytes(data)
    with pytest.raises(InputError, match=r"a/0.png: .*malformed images: 96"):
        ImageFolder(str(tmp_path), 6, 9).load(Reading(1))
    capsys.readouterr()
    ImageFolder(str(tmp_path), 6, 9, malformed="skip").load(Reading(1))
    told = capsys.readouterr().out
    assert "left out: 96, next to 16" in told and told.count("(it is none of them)") >= 32
    assert told.count("exceeds limit of 100 pixels") == 16
    assert warnings.filters == before


def test_the_first_frame(tmp_path):
    frames = [Image.fromarray(np.full((6, 9, 3), 60 * i, np.uint8)) for i in range(1, 4)]
    for format, kind in (("PNG", {}), ("WEBP", {"lossless": True})):
        frames[0].save(tmp_path / "a", format, save_all=True, append_images=frames[1:], **kind)
        np.testing.assert_array_equal(image_files.read(tmp_path / "a", 6, 9, 3), frames[0])


def test_four_inks(tmp_path):
    """JPEG of CMYK, and the same components as YCCK. Both are inverted, as Adobe's programs write them."""
    for components in ((0, 0, 0, 0), (255, 0, 0, 0), (0, 200, 100, 50), (30, 60, 90, 255)):
        image = Image.new("CMYK", (16, 16), components)
        image.save(tmp_path / "a.jpg", quality=100)
        cyan, magenta, yellow, black = components
        expected = [(255 - ink) * (255 - black) / 255 for ink in (cyan, magenta, yellow)]
        found = image_files.read(tmp_path / "a.jpg", 16, 16, 3)[8, 8]
        np.testing.assert_allclose(found, expected, atol=4)
        data = (tmp_path / "a.jpg").read_bytes()
        at = data.index(b"Adobe") + 11  # the transform: 0, CMYK
        assert data[at] == 0
        (tmp_path / "a.jpg").write_bytes(data[:at] + b"\2" + data[at + 1 :])
        y, cb, cr = (255 - ink for ink in (cyan, magenta, yellow))
        rgb = y + 1.402 * (cr - 128), y - 0.344136 * (cb - 128) - 0.714136 * (cr - 128), y + 1.772 * (cb - 128)
        expected = [(255 - each) * (255 - black) / 255 for each in np.clip(rgb, 0, 255)]
        found = image_files.read(tmp_path / "a.jpg", 16, 16, 3)[8, 8]
        np.testing.assert_allclose(found, expected, atol=4)


@pytest.mark.parametrize("mode, format", itertools.product(["RGBA", "LA"], ["PNG", "WEBP"]))
def test_alpha(tmp_path, mode, format):
    alpha = np.arange(54).reshape(6, 9).astype(np.uint8) * 4
    image = Image.fromarray(np.dstack([PIXELS, alpha])).convert(mode)
    image.save(tmp_path / "a", format, **({"lossless": True, "exact": True} if format == "WEBP" else {}))
    expected = np.asarray(image.convert("RGB")) * (alpha / 255)[..., None]
    np.testing.assert_allclose(image_files.read(tmp_path / "a", 6, 9, 3), expected, atol=0.51)
