"""The picture of where digits lie."""

import sys

import numpy as np
import pytest
from matplotlib.image import imread

from docs.figures import digits_picture
from tests.support.made_data import write_idx, write_mnist


def test_the_picture_has_digits_in_every_row(tmp_path):
    digits_picture.draw(write_mnist(tmp_path, num_train=10, num_test=10), tmp_path / "drawn.png")
    drawn = imread(tmp_path / "drawn.png")[..., :3].mean(-1)
    height, width = drawn.shape
    for i in range(len(digits_picture.ROWS)):
        row = drawn[height * i // 4 + 20 : height * (i + 1) // 4 - 20, width // 20 :]
        assert (row < 0.1).mean() > 0.1 and (row > 0.4).mean() > 0.05


@pytest.mark.slow
def test_the_digits_are_drawn_where_they_lie(tmp_path):
    """Two pictures that differ in their digits only: they differ in every row, and of the halves in one half."""
    pictures = []
    for value in (0, 255):
        folder = write_mnist(tmp_path / str(value), num_train=10, num_test=10)
        for name in ("train", "t10k"):
            write_idx(folder / f"{name}-images-idx3-ubyte.gz", np.full((10, 28, 28), value, np.uint8))
        digits_picture.draw(folder, tmp_path / "drawn.png")
        pictures.append(imread(tmp_path / "drawn.png")[..., :3].mean(-1))
    differ = pictures[0] != pictures[1]
    rows = [part.any(0) for part in np.array_split(differ, len(digits_picture.ROWS))]
    assert all(row.any() for row in rows)
    first_panels = [row[: row.size // digits_picture.NUMBER] for row in rows]  # of MNIST, the digit fills its panel
    left, right = np.flatnonzero(first_panels[0])[[0, -1]]
    middle, pixel = (left + right) / 2, (right - left) / digits_picture.HALVES.canvas
    training, test = (np.flatnonzero(panel) for panel in first_panels[2:])
    assert training.max() < middle + pixel and test.min() > middle - pixel


def test_a_folder_without_mnist_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["digits_picture", str(tmp_path), "--out=none.png"])
    with pytest.raises(SystemExit):
        digits_picture.main()
    assert "MNIST not found" in capsys.readouterr().err
