"""Every kind of PNG, against values computed by hand: colour type, bit depth, and what is transparent."""

import struct
import zlib

import numpy as np
import pytest

from posattn_jax.data.images import image_files
from posattn_jax.system.errors import InputError

GREY, RGB, PALETTE, GREY_ALPHA, RGB_ALPHA = 0, 2, 3, 4, 6
CHANNELS = {GREY: 1, RGB: 3, PALETTE: 1, GREY_ALPHA: 2, RGB_ALPHA: 4}
KINDS = [
    *((GREY, depth) for depth in (1, 2, 4, 8, 16)),
    *((PALETTE, depth) for depth in (1, 2, 4, 8)),
    *((kind, depth) for kind in (RGB, GREY_ALPHA, RGB_ALPHA) for depth in (8, 16)),
]
COLOURS = np.random.default_rng(7).integers(0, 256, (256, 3)).astype(np.uint8)


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def write(path, kind, depth, samples, transparent=b""):
    """A PNG of samples [h w c] below 2 ** depth, without filters."""
    height, width, _ = samples.shape
    bits = (samples.reshape(height, -1, 1) >> np.arange(depth)[::-1]) & 1
    rows = np.packbits(bits.reshape(height, -1).astype(np.uint8), axis=1)
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0))]
    chunks += [(b"PLTE", COLOURS[: 2**depth].tobytes())] if kind == PALETTE else []
    chunks += [(b"tRNS", transparent)] if transparent else []
    chunks += [(b"IDAT", zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))), (b"IEND", b"")]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*each) for each in chunks))
    return path


def make_samples(kind, depth):
    """[16 16 c]: all samples of grey and of palettes up to 8 bits; others at random."""
    size = 16, 16, CHANNELS[kind]
    if kind in (GREY, PALETTE) and depth <= 8:
        return (np.arange(256) % 2**depth).reshape(size)
    return np.random.default_rng(0).integers(0, 2**depth, size)


def seen(kind, depth, samples):
    """[16 16 3] the opaque image in 8 bits, and [16 16] its alpha from 0 to 1."""
    if kind == PALETTE:
        return COLOURS[samples[..., 0]], np.ones(samples.shape[:2])
    eight = samples >> 8 if depth == 16 else samples * 255 // (2**depth - 1)
    has_alpha = kind in (GREY_ALPHA, RGB_ALPHA)
    values = np.broadcast_to(eight[..., :-1] if has_alpha else eight, (16, 16, 3))
    return values, eight[..., -1] / 255 if has_alpha else np.ones((16, 16))


@pytest.mark.parametrize("kind, depth", KINDS)
def test_kinds(tmp_path, kind, depth):
    samples = make_samples(kind, depth)
    values, alpha = seen(kind, depth, samples)
    read = image_files.read(write(tmp_path / "a.png", kind, depth, samples), 16, 16, 3)
    np.testing.assert_allclose(read, values * alpha[..., None], atol=0 if alpha.all() and alpha.min() == 1 else 0.51)


@pytest.mark.parametrize("pixel", [0, 1, 77, 255])
@pytest.mark.parametrize("kind, depth", [each for each in KINDS if each[0] in (GREY, RGB) and each != (RGB, 16)])
def test_a_colour_is_transparent(tmp_path, kind, depth, pixel):
    """Of grey and of RGB. What is transparent is black; bits above the depth do not count."""
    samples = make_samples(kind, depth)
    colour = samples.reshape(256, -1)[pixel]
    values, _ = seen(kind, depth, samples)
    expected = np.where((samples == colour).all(-1)[..., None], 0, values)
    for above in (0, 2**16 - 2**depth):
        path = write(tmp_path / "a.png", kind, depth, samples, (colour + above).astype(">u2").tobytes())
        np.testing.assert_array_equal(image_files.read(path, 16, 16, 3), expected)
        luma = expected[..., 0] if kind == GREY else expected @ [0.299, 0.587, 0.114]
        np.testing.assert_allclose(image_files.read(path, 16, 16, 1)[..., 0], luma, atol=0.51)


def test_close_greys_of_16_bits_are_not_transparent(tmp_path):
    samples = np.array([[[0x1234], [0x1235]]])
    path = write(tmp_path / "a.png", GREY, 16, samples, b"\x12\x34")
    np.testing.assert_array_equal(image_files.read(path, 1, 2, 1)[..., 0], [[0, 0x12]])


def test_a_colour_of_16_bits(tmp_path):
    """Pillow reduces RGB to 8 bits, in which the colour may be that of another pixel: it is refused where it occurs."""
    samples = make_samples(RGB, 16)
    samples[3, 4] = 0x1200, 0x3400, 0x5600
    path = write(tmp_path / "a.png", RGB, 16, samples, b"\x12\x01\x34\x02\x56\x03")
    with pytest.raises(InputError, match=r"a.png: .*transparent colour of 16 bits"):
        image_files.read(path, 16, 16, 3)
    path = write(tmp_path / "a.png", RGB, 16, samples, b"\x12\x00\x34\x00\x57\x00")
    np.testing.assert_array_equal(image_files.read(path, 16, 16, 3), samples >> 8)


@pytest.mark.parametrize("alphas", [[0], [255, 0], [255, 128], [0, 1, 77, 255]])
@pytest.mark.parametrize("depth", [1, 2, 4, 8])
def test_entries_of_a_palette_are_transparent(tmp_path, depth, alphas):
    alphas = alphas[: 2**depth]
    samples = make_samples(PALETTE, depth)
    every = np.append(alphas, np.full(256 - len(alphas), 255))
    path = write(tmp_path / "a.png", PALETTE, depth, samples, bytes(alphas))
    expected = COLOURS[samples[..., 0]] * every[samples] / 255
    np.testing.assert_allclose(image_files.read(path, 16, 16, 3), expected, atol=0.51)
