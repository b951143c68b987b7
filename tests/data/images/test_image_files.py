"""Image files of any size and kind as images of a set."""

import numpy as np
import pytest
from PIL import Image

from posattn_jax.data.images import image_files
from posattn_jax.system.errors import InputError


def save(path, array, mode=None, **options):
    image = Image.fromarray(array)
    (image.convert(mode) if mode else image).save(path, **options)
    return path


def random_image(*shape):
    return np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)


def test_what_has_the_size_is_not_changed(tmp_path):
    grey, colour = random_image(6, 8), random_image(6, 8, 3)
    np.testing.assert_array_equal(image_files.read(save(tmp_path / "a.png", grey), 6, 8, 1)[..., 0], grey)
    np.testing.assert_array_equal(image_files.read(save(tmp_path / "b.png", colour), 6, 8, 3), colour)


def test_the_centre_is_kept_and_resized(tmp_path):
    """Of a wide image the sides are left out, of a tall one top and bottom."""
    image = np.zeros((20, 60), np.uint8)
    image[:, 20:40] = 200
    image[:10, :20] = 255
    for name, array in (("wide.png", image), ("tall.png", image.T)):
        read = image_files.read(save(tmp_path / name, array), 5, 5, 1)
        np.testing.assert_allclose(read, np.full((5, 5, 1), 200), atol=20)  # cubics reach over the edge
    larger = image_files.read(save(tmp_path / "small.png", random_image(2, 4)), 8, 16, 1)
    assert larger.shape == (8, 16, 1) and np.ptp(larger) > 0


def test_kinds_of_pixels(tmp_path):
    """Colours to grey, grey to colours, 16 bits, palettes, what is transparent, and what is turned."""
    colour = np.zeros((2, 2, 3), np.uint8)
    colour[..., 1] = 102
    read = image_files.read(save(tmp_path / "colour.png", colour), 2, 2, 1)
    np.testing.assert_array_equal(read, np.full((2, 2, 1), 60))  # .587 of green
    grey = random_image(2, 2)
    read = image_files.read(save(tmp_path / "grey.png", grey), 2, 2, 3)
    np.testing.assert_array_equal(read, np.repeat(grey[..., None], 3, -1))
    deep = save(tmp_path / "deep.png", grey.astype(np.uint16) * 257)
    np.testing.assert_array_equal(image_files.read(deep, 2, 2, 1)[..., 0], grey)
    palette = save(tmp_path / "palette.png", colour, "P")
    np.testing.assert_array_equal(image_files.read(palette, 2, 2, 3), colour)
    seen = np.dstack([np.full((2, 2, 3), 255, np.uint8), np.array([[255, 0], [0, 255]], np.uint8)])
    read = image_files.read(save(tmp_path / "seen.png", seen), 2, 2, 1)[..., 0]
    np.testing.assert_array_equal(read, [[255, 0], [0, 255]])
    turned = Image.fromarray(np.repeat([[0, 255]], 2, 0).astype(np.uint8).repeat(16, 0).repeat(16, 1))
    exif = turned.getexif()
    exif[0x0112] = 6  # to be turned to the right
    turned.save(tmp_path / "turned.jpg", exif=exif, quality=95)
    read = image_files.read(tmp_path / "turned.jpg", 2, 2, 1)[..., 0]
    assert (read[0] < 30).all() and (read[1] > 225).all()


def test_folders_are_searched(tmp_path):
    (tmp_path / "b" / "c").mkdir(parents=True)
    (tmp_path / "b" / ".thumbnails").mkdir()
    (tmp_path / "empty").mkdir()
    names = ("b/10.jpeg", "b/2.PNG", "b/c/1.jpg", "a.png")
    for name in (*names, "b/note.txt", "b/._1.jpg", "b/.thumbnails/1.jpg"):
        (tmp_path / name).write_bytes(b"")
    found = image_files.find([str(tmp_path / "b"), str(tmp_path / "empty"), str(tmp_path / "a.png")])
    assert [found[i] for i in (0, 1, 2, 4)] == [tmp_path / name for name in names]
    assert str(found[3]) == f"{tmp_path / 'empty'}: no .png or .jpg or .jpeg or .webp below this folder"


def test_what_cannot_be_read(tmp_path):
    (tmp_path / "text.png").write_text("no image")
    save(tmp_path / "cut.png", random_image(64, 64))
    (tmp_path / "cut.png").write_bytes((tmp_path / "cut.png").read_bytes()[:900])
    save(tmp_path / "tif.png", random_image(4, 4), format="TIFF")
    for name, message in (
        ("text.png", r"text.png: cannot be read as PNG, JPEG or WebP \(it is none of them\)"),
        ("tif.png", r"\(it is none of them\)"),
        ("cut.png", r"cut.png: cannot be read as PNG, JPEG or WebP \("),
        ("none.png", r"\(No such file or directory\)"),
    ):
        with pytest.raises(InputError, match=message):
            image_files.read(tmp_path / name, 4, 4, 1)
    with pytest.raises(InputError, match="have 4 channels: expected 1 or 3"):
        image_files.read(save(tmp_path / "a.png", random_image(4, 4)), 4, 4, 4)


def test_too_many_pixels(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    for side in (12, 20):  # more than the limit, which Pillow warns of, and more than twice it
        with pytest.raises(InputError, match="exceeds limit of"):
            image_files.read(save(tmp_path / "a.png", random_image(side, side)), 4, 4, 1)
