"""Text files, subwords, and pairs of lines."""

import gzip

import numpy as np
import pytest

from posattn_jax.data.pipeline.data_set import split
from posattn_jax.data.text import corpus, sequences, text_files
from posattn_jax.data.text import lines as lines_
from posattn_jax.data.tokenizers import tokenizer
from posattn_jax.data.tokenizers.tokenizer import CLS, MASK, PAD, SEP
from posattn_jax.system.errors import InputError
from tests.support.made_text import sentences, write_text


@pytest.fixture(scope="module")
def subwords():
    return tokenizer.train(sentences(0, 300), 50)


def test_finds_text_of_a_folder_and_its_folders(tmp_path):
    (tmp_path / "inner").mkdir()
    for name in ("b.txt", "inner/a.txt.gz", "c.tsv"):
        (tmp_path / name).write_bytes(b"")
    assert text_files.find(tmp_path, "data.dir") == [tmp_path / "b.txt", tmp_path / "inner" / "a.txt.gz"]
    assert text_files.find(tmp_path / "c.tsv", "data.dir") == [tmp_path / "c.tsv"]
    with pytest.raises(InputError, match=r"data.dir=.*nothing: no text there"):
        text_files.find(tmp_path / "nothing", "data.dir")
    (tmp_path / "inner" / "a.txt").touch()
    with pytest.raises(InputError, match=r"inner/a.txt and a.txt.gz: expected one of them"):
        text_files.find(tmp_path, "data.dir")


def test_lines_of_plain_and_zipped_files(tmp_path):
    (tmp_path / "a.txt").write_bytes("\ufeffOne  two \r\n\nthree".encode())
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"four\n"))
    files = text_files.find(tmp_path, "data.dir")
    assert list(text_files.lines(files)) == ["One two", "", "three", "", "four", ""]


def test_damaged_text_is_told_with_file_and_line(tmp_path):
    bad, cut = tmp_path / "bad.txt", tmp_path / "cut.txt.gz"
    bad.write_bytes(b"fine\nnot \xff fine\n")
    with pytest.raises(InputError, match=r"bad.txt: line 2 is no UTF-8"):
        list(text_files.lines([bad]))
    cut.write_bytes(gzip.compress("\n".join(map(str, range(9999))).encode())[:-20])
    with pytest.raises(InputError, match=r"cut.txt.gz: .*line \d+"):
        list(text_files.lines([cut]))


def test_tokenizer(subwords):
    assert subwords.vocabulary_size == 50
    (ids,) = subwords.encode(["The CAT sees a dog."])
    assert ids.min() > MASK and ids.max() < 50
    assert subwords.decode(np.array([CLS, *ids, SEP, PAD])) == "the cat sees a dog."
    assert subwords.encode([""])[0].tolist() == []
    assert tokenizer.train(sentences(0, 300), 50).sha256 == subwords.sha256
    assert tokenizer.train(sentences(1, 300), 50).sha256 != subwords.sha256


@pytest.mark.parametrize("size, message", [(5000, "at most [0-9]+$"), (8, "at least [0-9]+$")])
def test_a_vocabulary_that_the_text_does_not_allow(monkeypatch, size, message):
    monkeypatch.setattr(tokenizer, "SMALL_LINES", 200)
    with pytest.raises(InputError, match=f"data.vocabulary_size={size}: .*{message}"):
        tokenizer.train(sentences(0, 300), size)


def test_what_goes_wrong_with_the_text_is_told_as_such(tmp_path):
    (tmp_path / "bad.txt").write_bytes(b"\xff\n")
    with pytest.raises(InputError, match=r"bad.txt: line 1 is no UTF-8"):
        tokenizer.of_text(text_files.lines([tmp_path / "bad.txt"]), [tmp_path / "bad.txt"], 50, tmp_path / "cache")

    def stopped():
        yield "The cat."
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tokenizer.train(stopped(), 50)


def test_the_bound_that_is_told_is_the_bound(monkeypatch):
    taken = tokenizer.train(sentences(0, 300), 5000)  # a small text's bound is what it takes
    monkeypatch.setattr(tokenizer, "SMALL_LINES", 200)
    with pytest.raises(InputError) as error:
        tokenizer.train(sentences(0, 300), 5000)
    most = int(str(error.value).split()[-1])
    assert tokenizer.train(sentences(0, 300), most).sha256 == taken.sha256


def test_a_text_is_tokenised_once(tmp_path, monkeypatch):
    files = text_files.find(write_text(tmp_path / "text"), "data.dir")
    first = tokenizer.of_text(text_files.lines(files), files, 50, tmp_path / "cache")
    pairs = corpus.of_text(files, first, 16, tmp_path / "cache")

    def fail(*_):
        raise AssertionError("is in the cache")

    with monkeypatch.context() as patch:
        patch.setattr(tokenizer, "train", fail)
        patch.setattr(lines_, "write", fail)
        again = tokenizer.of_text(text_files.lines(files), files, 50, tmp_path / "cache")
        same = corpus.of_text(files, again, 16, tmp_path / "cache")
    assert again.sha256 == first.sha256
    np.testing.assert_array_equal(same.batch(np.arange(9))["tokens"], pairs.batch(np.arange(9))["tokens"])
    files[0].write_text("\n".join(sentences(7, 300)))
    assert tokenizer.of_text(text_files.lines(files), files, 50, tmp_path / "cache").sha256 != first.sha256


def test_a_run_keeps_its_tokenizer(tmp_path, subwords):
    tokenizer.check(subwords, tmp_path)
    tokenizer.save(subwords, tmp_path)
    tokenizer.check(subwords, tmp_path)
    assert tokenizer.of_run(tmp_path).sha256 == subwords.sha256
    assert (tmp_path / "tokenizer.sha256").read_text() == f"{subwords.sha256}  tokenizer.model\n"
    other = tokenizer.train(sentences(1, 300), 50)
    with pytest.raises(InputError, match=f"{subwords.sha256[:12]}.*now {other.sha256[:12]}"):
        tokenizer.check(other, tmp_path)
    other.save(tmp_path / "tokenizer.model")
    with pytest.raises(InputError, match="is not the tokenizer of this run"):
        tokenizer.of_run(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"no model")
    with pytest.raises(InputError, match="no SentencePiece model"):
        tokenizer.of_run(tmp_path)


@pytest.mark.parametrize("chunk", [1, 3, 10_000])
def test_pairs_of_consecutive_lines(tmp_path, subwords, monkeypatch, chunk):
    """Within a document, without overlap; what is left over is alone; none is lost, whatever is read at a time."""
    monkeypatch.setattr(lines_, "CHUNK", chunk)
    lines = sentences(3, 9)
    documents = [lines[:3], lines[3:5], lines[5:6], lines[6:]]
    (tmp_path / "a.txt").write_text("\n" + "\n\n".join("\n".join(each) for each in documents[:2]) + "\n\n\n")
    (tmp_path / "b.txt").write_text("\n".join(documents[2]))
    (tmp_path / "c.txt").write_text("\n".join(documents[3]))
    files = text_files.find(tmp_path, "data.dir")
    pairs = corpus.of_text(files, subwords, 30, tmp_path / "cache")
    expected = [each[i : i + 2] for each in documents for i in range(0, len(each), 2)]
    assert len(pairs) == len(expected) == 6
    for number, parts in enumerate(expected):
        batch = {name: array[0] for name, array in pairs.batch(np.array([number])).items()}
        ids = [[*each, SEP] for each in subwords.encode(parts)]
        tokens = [CLS, *np.concatenate(ids)]
        segments = [0] * (1 + len(ids[0])) + [1] * (len(tokens) - 1 - len(ids[0]))
        assert batch["tokens"].tolist() == tokens + [PAD] * (30 - len(tokens))
        assert batch["segments"].tolist() == segments + [0] * (30 - len(tokens))
        assert batch["ids"] == number
    assert pairs.num_cut == 0
    assert sorted(path.name[0] for path in (tmp_path / "cache").iterdir()) == ["c"], "nothing half-written is left"


def test_text_without_a_line(tmp_path, subwords):
    (tmp_path / "a.txt").write_text("\n\n")
    with pytest.raises(InputError, match=r"a.txt: no line with text"):
        corpus.of_text([tmp_path / "a.txt"], subwords, 30, tmp_path / "cache")


def test_split_loses_nothing_and_repeats_nothing(tmp_path, subwords):
    pairs = corpus.of_text(text_files.find(write_text(tmp_path), "data.dir"), subwords, 12, tmp_path / "cache")
    train, validation = split(pairs, 1, 0.95)
    assert len(train) == round(0.95 * len(pairs)) and len(train) + len(validation) == len(pairs)
    both = np.concatenate([train.pairs, validation.pairs])
    assert sorted(map(tuple, both)) == sorted(map(tuple, pairs.pairs))
    np.testing.assert_array_equal(split(pairs, 1, 0.95)[1].pairs, validation.pairs)
    assert not np.array_equal(split(pairs, 2, 0.95)[1].pairs, validation.pairs)
    assert list(map(len, split(pairs.select(slice(3)), 1, 0.95))) == [2, 1], "never none to be judged by"


@pytest.mark.parametrize(
    "lengths, room, kept",
    [
        ((3, 4), 7, (3, 4)),
        ((3, 9), 7, (3, 4)),
        ((9, 8), 7, (3, 4)),
        ((2, 9), 3, (1, 2)),
        ((9,), 7, (7,)),
        ((0, 4), 2, (0, 2)),
    ],
)
def test_the_longer_part_is_cut(lengths, room, kept):
    parts = [np.arange(4, 4 + length) for length in lengths]
    length = room + 1 + len(parts)
    found = sequences.cut(parts, length)
    assert tuple(map(len, found)) == kept
    for part, whole in zip(found, parts, strict=True):
        np.testing.assert_array_equal(part, whole[: len(part)])
    row = sequences.lay_out([[parts]], length)["tokens"][0]
    assert np.sum(row == SEP) == len(parts) and row[0] == CLS and np.sum(row != PAD) == sum(kept) + 1 + len(parts)
