import json
import shutil
import types

import numpy as np
import pytest

from posattn_jax.data.images.image_sets import Images
from posattn_jax.data.pipeline import prepared
from posattn_jax.system.errors import InputError

tfds = pytest.importorskip("tensorflow_datasets")

IMAGES = np.random.default_rng(0).integers(0, 255, (7, 4, 4, 3), dtype=np.uint8)


class Squares(tfds.core.GeneratorBasedBuilder):
    """Seven images made from a seed."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {
            "image": tfds.features.Tensor(shape=(4, 4, 3), dtype=np.uint8),
            "label": tfds.features.ClassLabel(num_classes=5),
        }
        return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        for i, image in enumerate(IMAGES):
            yield i, {"image": image, "label": i % 5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tfds")
    Squares(data_dir=folder, file_format="array_record").download_and_prepare()
    return folder


def test_reads_a_prepared_set(folder):
    assert prepared.find("squares", folder)
    loaded = prepared.images("squares", folder).load(folder, "train")
    assert loaded.num_classes == 5
    found = {image.tobytes(): label for image, label in zip(loaded.images, loaded.labels, strict=True)}
    assert found == {image.tobytes(): i % 5 for i, image in enumerate(IMAGES)}


def test_describes_a_prepared_set(folder):
    found = prepared.images("squares", folder)
    assert (found.sides, found.channels, found.names) == ((4, 4), 3, ("0", "1", "2", "3", "4"))
    assert Images("tfds/squares", str(folder)).shape == (4, 4, 3)


def test_missing_set_is_told_at_once(tmp_path):
    with pytest.raises(InputError, match='tfds set "mnist" .*extra "prepare"'):
        prepared.images("mnist", tmp_path)


def test_a_test_part_without_labels_is_as_none(folder, monkeypatch):
    builder = types.SimpleNamespace(info=types.SimpleNamespace(splits=["train", "test"]))
    monkeypatch.setattr(prepared, "_image_builder", lambda *_: builder)
    found = prepared.PreparedImages("squares", (4, 4), 3, ("a", "b"))
    for label, is_there in ((-1, False), (1, True)):
        builder.as_data_source = lambda _, label=label: [{"image": IMAGES[0], "label": label}]
        assert (found.load(folder, "test") is not None) == is_there


def test_missing_split(folder):
    with pytest.raises(InputError, match='no split "test": it has train'):
        prepared.images("squares", folder).load(folder, "test")


@pytest.mark.parametrize("key", ["pythonClassName", "python_class_name", "type"])
def test_a_set_names_no_module_to_import(folder, tmp_path, monkeypatch, key):
    """tensorflow-datasets would import it, which is to execute it."""
    shutil.copytree(folder, tmp_path / "data")
    (tmp_path / "evil_features.py").write_text("raise SystemExit('executed')")
    monkeypatch.syspath_prepend(tmp_path)
    (path,) = (tmp_path / "data").rglob("features.json")
    described = json.loads(path.read_text())
    described["featuresDict"]["features"]["image"] = {key: "evil_features.Image"}
    path.write_text(json.dumps(described))
    with pytest.raises(InputError, match=f'{path}: .*"evil_features.Image"'):
        prepared.images("squares", tmp_path / "data")
    path.write_text(path.read_text()[:50])
    with pytest.raises(InputError, match=f"{path}: cannot be read"):
        prepared.images("squares", tmp_path / "data")


@pytest.mark.parametrize("name", ["huggingface:stranger/set", "stranger:set"])
def test_a_name_is_a_folder_and_nothing_on_the_network(folder, tmp_path, name):
    """tensorflow-datasets would look these names up elsewhere, and import what it finds there."""
    shutil.copytree(folder / "squares", tmp_path / name)
    assert prepared.images(name, tmp_path).sides == (4, 4)


def test_the_newest_version_is_read(tmp_path):
    for version in ("1.9.0", "1.10.0"):
        (tmp_path / "squares" / version).mkdir(parents=True)
        (tmp_path / "squares" / version / "dataset_info.json").touch()
    assert prepared.find("squares", tmp_path) == tmp_path / "squares" / "1.10.0"
