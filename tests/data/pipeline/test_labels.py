"""Labels that differ only in how they are spelled: in Unicode form they are one class, else a line tells of them."""

import unicodedata

import numpy as np
import pytest
from PIL import Image

from posattn_jax.data.images.arrays import Arrays
from posattn_jax.data.images.image_folder import ImageFolder
from posattn_jax.data.pipeline import user_data
from posattn_jax.data.pipeline.data_set import Reading
from posattn_jax.data.text.sentence_files import SentenceFiles
from posattn_jax.data.tokenizers import tokenizer
from posattn_jax.system.errors import InputError
from tests.support.made_own import write_table
from tests.support.made_text import sentences

COMPOSED, DECOMPOSED = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))
ONE_CLASS = r"labels that differ only in Unicode form are one class: 'cafe\u0301' (3) and 'caf\xe9' (5)"


class Images:
    """Class folders."""

    def __init__(self, folder):
        self.folder = folder

    def write(self, part, labels):
        for number, label in enumerate(labels):
            path = self.folder / part / label / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((8, 8, 3), number, np.uint8)).save(path)

    def load(self, **reading):
        return ImageFolder(str(self.folder), 8, 8).load(Reading(1, **reading))

    def labels(self, source):
        return source.images.labels.tolist()


class Texts(Images):
    """Arrays whose labels are texts."""

    def write(self, part, labels):
        np.savez(self.folder / part, images=np.zeros((len(labels), 4, 4), np.uint8), labels=np.array(labels))

    def load(self, **reading):
        return Arrays(str(self.folder)).load(Reading(1, **reading))


class Named(Texts):
    """Arrays whose labels are numbers with names."""

    def write(self, part, labels):
        names = list(dict.fromkeys(labels))
        numbers = np.array([names.index(label) for label in labels])
        images = np.zeros((len(labels), 4, 4), np.uint8)
        np.savez(self.folder / part, images=images, labels=numbers, names=np.array(names))


class Rows(Images):
    """The column of a table."""

    suffix = ".tsv"

    def __init__(self, folder):
        super().__init__(folder)
        tokenizer.save(tokenizer.train(sentences(0, 300), 50), folder / "start")

    def write(self, part, labels):
        write_table(self.folder / f"{part}{self.suffix}", ("sentence", "label"), [("a", label) for label in labels])

    def load(self, **reading):
        return SentenceFiles(str(self.folder)).load(Reading(1, pretrained=self.folder / "start", **reading))

    def labels(self, source):
        return source.targets.tolist()


class Quoted(Rows):
    suffix = ".csv"


class Objects(Rows):
    suffix = ".jsonl"


@pytest.fixture(params=[Images, Texts, Named, Rows, Quoted, Objects])
def data(request, tmp_path):
    return request.param(tmp_path)


def test_unicode_forms_are_one_class(data, tmp_path, capsys):
    data.write("train", [COMPOSED, DECOMPOSED, "tea", COMPOSED, DECOMPOSED, "tea", *[COMPOSED] * 3, DECOMPOSED])
    data.write("val", [DECOMPOSED, "tea", COMPOSED])
    data.write("test", [DECOMPOSED])
    sources = data.load(evaluates=True)
    assert sources["train"].names == (COMPOSED, "tea")
    assert sorted(data.labels(sources["train"])) == [0] * 8 + [1] * 2
    assert sorted(data.labels(sources["validation"])) == [0, 0, 1] and data.labels(sources["test"]) == [0]
    told = capsys.readouterr().out
    assert told.count(f"train: {ONE_CLASS}\n") == 1 and told.count("differ only") == 1
    sources["train"].save(tmp_path / ".run")
    again = data.load(evaluates=True, workdir=tmp_path / ".run")
    assert data.labels(again["validation"]) == data.labels(sources["validation"])
    assert "differ only" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "first, second",
    [
        ("True", "true"),
        ("ice  cream", "ice cream"),
        ("\uff21", "A"),
        ("a\u00a0b", "a b"),
        ("a\u200b", "a"),
        ("ß", "SS"),
    ],
)
def test_other_spellings_stay_two_classes(data, first, second, capsys):
    data.write("train", [first, second, "tea", first, second, "tea", first])
    data.write("val", [first, second])
    sources = data.load()
    names = sources["train"].names
    assert sorted(names) == sorted([first, second, "tea"])
    assert {names[label] for label in data.labels(sources["validation"])} == {first, second}
    counts = " and ".join(f"{label!r} ({number})" for label, number in sorted([(first, 3), (second, 2)]))
    differ = "differ only in case, white space or kinds of characters"
    line = f"train: labels that {differ} stay several classes: {counts}\n"
    told = capsys.readouterr().out
    assert told.count(line) == 1 and told.count("differ only") == 1


def test_a_run_that_has_two_forms_keeps_them(data, tmp_path):
    """Runs of earlier versions have what was in their data: one form, which may not be NFC, or both."""
    data.write("train", [COMPOSED, DECOMPOSED, "tea"] * 2)
    data.write("val", [COMPOSED, DECOMPOSED])
    for classes in ([DECOMPOSED, "tea"], [DECOMPOSED, COMPOSED, "tea"]):
        run = tmp_path / f".run_{len(classes)}"
        shape = [8, 8, 3] if type(data) is Images else [4, 4, 1]
        user_data.save(run, {"classes": classes, "num_examples": 9, "shape": shape, "max_value": 255})
        sources = data.load(workdir=run, evaluates=True)
        named = {sources["validation"].names[label] for label in data.labels(sources["validation"])}
        assert named == set(classes) - {"tea"}


def test_a_class_of_two_forms_is_one(data):
    data.write("train", [COMPOSED, DECOMPOSED])
    with pytest.raises(InputError, match="classes: 1 .*: expected at least 2"):
        data.load()


def test_many_alike_are_told_in_one_line(capsys):
    names = user_data.names_of("abcdefghijklmnABCDEFGHIJKLMN", "train", "here")
    assert len(names) == 28
    told = capsys.readouterr().out
    assert told.count("\n") == 1 and "'A' (1) and 'a' (1), 'B' (1) and 'b' (1), " in told and told.endswith(", ...\n")


def test_what_a_run_has_saved_of_its_data_is_named_where_it_cannot_be_read(tmp_path):
    (tmp_path / user_data.FILE).write_text("{}")
    with pytest.raises(InputError, match=f"^{tmp_path}/{user_data.FILE}: cannot be read .it has no classes.$"):
        user_data.of_run(tmp_path)
