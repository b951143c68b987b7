"""The picture of where digits lie."""

import sys

import pytest
from matplotlib.image import imread

from benchmarks import digits_picture
from tests.support.made_data import write_mnist


def test_the_picture_has_digits_in_every_row(tmp_path):
    digits_picture.draw(write_mnist(tmp_path, num_train=10, num_test=10), tmp_path / "drawn.png")
    drawn = imread(tmp_path / "drawn.png")[..., :3].mean(-1)
    height, width = drawn.shape
    for i in range(len(digits_picture.ROWS)):
        row = drawn[height * i // 4 + 20 : height * (i + 1) // 4 - 20, width // 20 :]
        assert (row < 0.1).mean() > 0.1 and (row > 0.4).mean() > 0.05


def test_a_folder_without_mnist_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["digits_picture", str(tmp_path), "--out=none.png"])
    with pytest.raises(SystemExit):
        digits_picture.main()
    assert "MNIST not found" in capsys.readouterr().err
