"""Text by its bytes: what sequences are made of, how they are shared out, and what is refused."""

import gzip
import pathlib

import numpy as np
import pytest

from posattn_jax.data.pipeline.data_set import Reading
from posattn_jax.data.text.characters import ByteSequences, Characters
from posattn_jax.data.text.corpus import Text
from posattn_jax.data.text.words import Words
from posattn_jax.system.errors import InputError


def test_sequences_do_not_overlap_and_each_byte_is_told_once():
    text = np.arange(23, dtype=np.uint8)
    source = ByteSequences(text, length=5)
    assert len(source) == 4 and source.knows == {"input_shape": (5,), "vocabulary_size": 256}
    batch = source.batch(np.array([3, 0]))
    np.testing.assert_array_equal(batch["tokens"], [[15, 16, 17, 18, 19], [0, 1, 2, 3, 4]])
    np.testing.assert_array_equal(batch["targets"], batch["tokens"] + 1)
    assert batch["tokens"].dtype == np.int32
    some = source.select(slice(1, 3))
    assert len(some) == 2
    np.testing.assert_array_equal(some.batch(np.array([1]))["tokens"], [[10, 11, 12, 13, 14]])


@pytest.mark.parametrize("size, number", [(0, 0), (1, 0), (5, 0), (6, 1), (10, 1), (11, 2)])
def test_the_last_byte_of_a_sequence_needs_one_after_it(size, number):
    assert len(ByteSequences(np.zeros(size, np.uint8), 5)) == number


def test_files_are_read_by_name_and_the_end_is_for_validation(tmp_path):
    (tmp_path / "b.txt").write_bytes(b"b" * 120)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress("ä".encode() * 60))
    (tmp_path / "c.md").write_bytes(b"c" * 99)
    parts = Characters(dir=str(tmp_path), length=10).load(Reading(seed=1))
    assert {name: len(part) for name, part in parts.items()} == {"train": 22, "validation": 1}
    assert bytes(parts["train"].text[:2]).decode() == "ä" and bytes(parts["train"].text[120:]) == b"b" * 101
    assert bytes(parts["validation"].text) == b"b" * 11
    files = Characters(dir=str(tmp_path)).files()
    assert sorted(files) == ["data.dir/a.txt.gz", "data.dir/b.txt"]


def test_a_validation_part_of_its_own(tmp_path):
    for name, size in (("train", 50), ("held_out", 31)):
        (tmp_path / f"{name}.txt").write_bytes(name[0].encode() * size)
    fields = {"dir": str(tmp_path / "train.txt"), "validation_dir": str(tmp_path / "held_out.txt"), "length": 10}
    parts = Characters(**fields, validation_limit=2).load(Reading(seed=1))
    assert {name: len(part) for name, part in parts.items()} == {"train": 4, "validation": 2}
    assert sorted(Characters(**fields).files()) == ["data.dir/train.txt", "data.validation_dir/held_out.txt"]
    assert len(Characters(**fields).empty(pathlib.Path())) == 0


@pytest.mark.parametrize("kind", [Characters, Text, Words])
def test_what_is_trained_on_is_no_validation_part(tmp_path, kind):
    (tmp_path / "val").mkdir()
    for name in ("a.txt", "val/b.txt"):
        (tmp_path / name).write_text("one line of a text\n" * 100)
    data = kind(dir=str(tmp_path), validation_dir=str(tmp_path / "val"))
    with pytest.raises(
        InputError, match=f"data.validation_dir={tmp_path}/val: {tmp_path}/val/b.txt is in data.dir too"
    ):
        data.load(Reading(seed=1))


@pytest.mark.parametrize(
    "content, name, expected",
    [
        (b"0123456789", "a.txt", r"10 bytes: .*21 .*data.length=10"),
        (gzip.compress(b"x" * 999)[:-9], "a.txt.gz", r"a.txt.gz: cannot be read"),
        (b"x" * 99, "a.md", "no text there"),
    ],
    ids=["short", "cut", "other"],
)
def test_text_that_cannot_be_read(tmp_path, content, name, expected):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=expected):
        Characters(dir=str(tmp_path), length=10).load(Reading(seed=1))


def test_fields_out_of_range(tmp_path):
    with pytest.raises(ValueError, match="length=1"):
        Characters(length=1)
    (tmp_path / "a.txt").write_bytes(b"x" * 100)
    with pytest.raises(InputError, match="^data.validation_limit=-1: expected 0, for all, or more$"):
        Characters(dir=str(tmp_path), length=10, validation_limit=-1).load(Reading(seed=1))
