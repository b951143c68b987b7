"""What ImageNet's zips may be wrong in; `tests/launch/test_prepare.py` reads whole ones."""

import numpy as np
import pytest

from posattn_jax.data.images.imagenet import ZIPS, DownsampledImageNet
from posattn_jax.system.errors import InputError
from tests.support.made_official import write_imagenet

IMAGES, SET = np.zeros((3, 64, 64, 3), np.uint8), DownsampledImageNet({"train": 3, "test": 3})
(VALIDATION,) = ZIPS["test"]


def test_missing_is_told(tmp_path):
    with pytest.raises(InputError, match=f"{tmp_path / ZIPS['train'][0]} is missing: https"):
        SET.load(tmp_path, "train")
    assert SET.files(tmp_path, "test") == []


@pytest.mark.parametrize("number, told", [(2, "have 2 images, expected 3"), (4, "have 4 images, expected 3")])
def test_another_number_of_images(tmp_path, number, told):
    labels = np.zeros(number, int)
    write_imagenet(tmp_path / VALIDATION, {"val_data.npz": (np.resize(IMAGES, (number, 64, 64, 3)), labels)})
    with pytest.raises(InputError, match=f"{VALIDATION} {told}"):
        SET.load(tmp_path, "test")


@pytest.mark.parametrize("label", [-1, 1000])
def test_labels_that_are_none(tmp_path, label):
    write_imagenet(tmp_path / VALIDATION, {"val_data.npz": (IMAGES, np.array([0, 999, label]))})
    with pytest.raises(InputError, match=r"val_data.npz \(labels from \d+ to \d+\)"):
        SET.load(tmp_path, "test")


def test_a_damaged_zip(tmp_path):
    path = tmp_path / VALIDATION
    write_imagenet(path, {"val_data.npz": (IMAGES, np.zeros(3, int))})
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(InputError, match=f"{path} cannot be read at"):
        SET.load(tmp_path, "test")
