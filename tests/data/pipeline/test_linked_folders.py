"""Linked folders and files of a user's own data are read as if they were in their places."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image

from posattn_jax.data.images import image_files
from posattn_jax.data.images.image_folder import ImageFolder
from posattn_jax.data.pipeline import checksums, prepared
from posattn_jax.data.pipeline.data_set import Reading
from posattn_jax.data.text import text_files
from posattn_jax.data.text.characters import Characters
from posattn_jax.data.text.corpus import Text
from posattn_jax.data.text.sentence_files import SentenceFiles
from posattn_jax.system.checksums import of_file
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import files_below


def write_images(folder, number=5):
    folder.mkdir(parents=True)
    for i in range(number):
        Image.fromarray(np.full((8, 8, 3), 10 * i, np.uint8)).save(folder / f"{i}.png")


@pytest.fixture
def images(tmp_path):
    """Class folders cat and dog, and a third elsewhere, to which fox is a link."""
    for name in ("images/cat", "images/dog", "elsewhere"):
        write_images(tmp_path / name)
    (tmp_path / "images" / "fox").symlink_to("../elsewhere")
    return tmp_path / "images"


def read(folder, **fields):
    return ImageFolder(str(folder), 8, 8, **fields).load(Reading(1, evaluates=True))


def test_a_linked_class_folder_is_a_class(images, capsys):
    sources = read(images)
    assert "train: 15 images of 3 classes" in capsys.readouterr().out
    assert sources["train"].names == ("cat", "dog", "fox")
    assert sum(map(len, sources.values())) == 15


def test_two_links_to_a_folder_are_two_classes(images, capsys):
    (images / "wolf").symlink_to(images / "dog")
    assert read(images)["train"].names == ("cat", "dog", "fox", "wolf")
    assert "train: 20 images of 4 classes" in capsys.readouterr().out


def test_an_image_is_read_once_a_class(images, capsys):
    (images / "cat" / "0_again.png").symlink_to("0.png")
    (images / "fox2").symlink_to("fox")
    (images / "fox2" / "deep").symlink_to(images / "cat")  # in fox too, which is the same folder
    sources = read(images)
    told = capsys.readouterr().out
    assert "train: 30 images of 4 classes" in told and "that the same class has already: 3, not read" in told
    assert "hidden" not in told and len(ImageFolder(str(images)).files()) == sum(map(len, sources.values())) == 30


def test_linked_parts(images, tmp_path, capsys):
    parts = tmp_path / "parts"
    (parts / "val" / "cat").mkdir(parents=True)
    (parts / "val" / "cat" / "one.png").symlink_to(images / "cat" / "0.png")
    (parts / "val" / "fox").symlink_to(images / "fox")
    (parts / "train").symlink_to(images)
    (parts / "test").symlink_to("train")
    assert {part: len(source) for part, source in read(parts).items()} == {"train": 15, "validation": 6, "test": 15}
    assert "validation: 6 images of 2 classes" in capsys.readouterr().out
    names = set(ImageFolder(str(parts)).files())
    assert len(names) == 36 and {"data.dir/val/cat/one.png", "data.dir/test/fox/4.png"} <= names


def test_a_run_remembers_linked_files(images, tmp_path):
    files, run = ImageFolder(str(images)).files(), tmp_path / "run"
    assert len(files) == 15
    checksums.save(files, run)
    sums = json.loads((run / checksums.FILE).read_text())
    assert sums["data.dir/fox/3.png"] == of_file(tmp_path / "elsewhere" / "3.png")
    shutil.copy(tmp_path / "elsewhere" / "1.png", tmp_path / "elsewhere" / "3.png")
    with pytest.raises(InputError, match="fox/3.png has changed"):
        checksums.check(ImageFolder(str(images)).files(), run)


@pytest.mark.parametrize("target", [".", "..", "../..", "deep"])
def test_loops_end(images, tmp_path, target):
    (images / "cat" / "deep").mkdir()
    (images / "cat" / "deep" / "5.png").symlink_to("../0.png")
    (images / "cat" / "deep" / "loop").symlink_to(target if target != "deep" else tmp_path / "images" / "cat")
    found, wrong = image_files.below(images / "cat")
    assert {f"{i}.png" for i in range(6)} <= {path.name for path in found} and not wrong
    assert len(found) == (16 if target == "../.." else 6)  # images is above: its dog and fox are not in the loop


def test_links_to_nothing_are_named(images, tmp_path, capsys):
    (images / "owl").symlink_to("../gone")
    (images / "cat" / "5.png").symlink_to("gone.png")
    (images / "cat" / ".#lock").symlink_to("user@host.1")  # as Emacs makes them
    (images / "cat" / "self.png").symlink_to("self.png")
    with pytest.raises(InputError, match=r"cat/5.png: .*gone.png.*malformed .*: 3,"):
        read(images)
    capsys.readouterr()
    read(images, malformed="skip")
    told = capsys.readouterr().out
    assert f"left out: {images}/owl: is a link to ../gone" in told
    assert "left out: 3, next to 15" in told
    assert len(ImageFolder(str(images)).files()) == 15
    asked = image_files.find([str(images)])
    assert [str(each) for each in asked if isinstance(each, InputError)] == [
        f"{images}/cat/5.png: is a link to gone.png, which is not there",
        f"{images}/cat/self.png: is a link to self.png, which is not there",
        f"{images}/owl: is a link to ../gone, which is not there",
    ]
    parts = tmp_path / "parts"
    parts.mkdir()
    (parts / "train").symlink_to(images)
    (parts / "val").symlink_to("gone")
    with pytest.raises(InputError, match=f"{parts}/val: .*link to gone"):
        read(parts)


def test_a_link_to_nothing_is_no_missing_table(tmp_path):
    (tmp_path / "train.tsv").write_text("sentence\tlabel\na\tb\nb\ta\n")
    (tmp_path / "val.tsv").symlink_to("gone.tsv")
    with pytest.raises(InputError, match=r"val.tsv: .*link to gone.tsv"):
        SentenceFiles(str(tmp_path)).load(Reading(1))


@pytest.fixture
def text(tmp_path):
    """A text folder with a linked folder, a linked file and a loop."""
    for name in ("text/a.txt", "more/b.txt", "c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"what is in {name}\n")
    (tmp_path / "text" / "linked").symlink_to(tmp_path / "more")
    (tmp_path / "text" / "c.txt").symlink_to("../c.txt")
    (tmp_path / "more" / "loop").symlink_to(tmp_path / "text")
    return tmp_path / "text"


def test_linked_text(text):
    expected = [text / "a.txt", text / "c.txt", text / "linked" / "b.txt"]
    assert text_files.find(text, "data.dir") == expected
    assert set(Text(str(text)).files()) == {"data.dir/a.txt", "data.dir/c.txt", "data.dir/linked/b.txt"}
    assert list(text_files.lines(expected)) == [
        *("what is in text/a.txt", "", "what is in c.txt", "", "what is in more/b.txt", "")
    ]
    held_out = Characters(str(text), validation_dir=str(text / "linked"), length=2)
    assert "data.validation_dir/b.txt" in held_out.files()
    for name in ("d.txt", "linked_too"):
        (text / name).symlink_to({"d.txt": "c.txt", "linked_too": "linked"}[name])
    assert text_files.find(text, "data.dir") == expected
    (text / "d").symlink_to("gone")
    for load in (Text(str(text)).load, Characters(str(text)).load):
        with pytest.raises(InputError, match=f"{text}/d: .*link to gone"):
            load(Reading(1))


def test_what_a_linked_prepared_set_would_import_is_checked(tmp_path):
    """tensorflow-datasets follows links, so the check of its features must."""
    pytest.importorskip("tensorflow_datasets")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "dataset_info.json").write_text("{}")
    (tmp_path / "elsewhere" / "features.json").write_text('{"pythonClassName": "evil_features.Image"}')
    (tmp_path / "data" / "squares").mkdir(parents=True)
    (tmp_path / "data" / "squares" / "1.0.0").symlink_to("../../elsewhere")
    assert prepared.find("squares", tmp_path / "data") == tmp_path / "data" / "squares" / "1.0.0"
    assert len(prepared.files(tmp_path / "data")) == 2
    with pytest.raises(InputError, match='names the class "evil_features.Image"'):
        prepared.images("squares", tmp_path / "data")


def test_folders_that_link_to_each_other_are_read_once_below_each_entry(tmp_path):
    """Every path through the links would be one of 8! for each class."""
    names = [f"class_{i}" for i in range(8)]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.png").touch()
        for other in names:
            if other != name:
                (tmp_path / name / other).symlink_to(tmp_path / other)
    found, wrong = files_below(tmp_path)
    assert not wrong and len(found) == len(names) ** 2
    assert tmp_path / names[0] / names[1] / f"{names[1]}.png" in found
