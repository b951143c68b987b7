"""Parallel text, and its subwords."""

import dataclasses
import gzip
import io
import unicodedata

import numpy as np
import pytest
import sentencepiece

from posattn_jax.data.pipeline import prepared
from posattn_jax.data.pipeline.batches import Share, training_batches
from posattn_jax.data.text import lines as lines_
from posattn_jax.data.text import parallel, text_files
from posattn_jax.data.tokenizers import tokenizer
from posattn_jax.data.tokenizers.tokenizer import BEGIN, CLS, END, MASK, PAD, SEP
from posattn_jax.system.errors import InputError
from tests.support.made_text import LANGUAGES, sentences, translated, write_parallel

BUCKETS = (24, 48, 72)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_parallel(tmp_path_factory.mktemp("parallel"))


@pytest.fixture(scope="module")
def files(folder):
    return [folder / f"train.{language}" for language in LANGUAGES]


def of_files(files, *arguments):
    """Of files PART.LANGUAGE, plain or zipped."""
    sides = [parallel.of_file(path.parent, *path.name.removesuffix(".gz").split(".")) for path in files]
    return parallel.of_text(*sides, *arguments)


@pytest.fixture(scope="module")
def subwords(files):
    return tokenizer.train(text_files.lines(files), 60, "bpe", fold_case=False)


@pytest.fixture(scope="module")
def train(files, subwords, tmp_path_factory):
    return of_files(files, (subwords, subwords), BUCKETS, tmp_path_factory.mktemp("cache"))


def of_lines(folder, subwords, source, target, *malformed):
    for name, lines in (("a.qa", source), ("a.qb", target)):
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    files = [folder / f"a.{language}" for language in LANGUAGES]
    return of_files(files, (subwords, subwords), BUCKETS, folder / "cache", *malformed)


def test_cased_byte_pairs_keep_the_text(subwords, files):
    assert subwords.vocabulary_size == 60 and (BEGIN, END) == (CLS, SEP)
    lines = [line for line in text_files.lines(files) if line]
    for line, ids in zip(lines, subwords.encode(lines), strict=True):
        assert ids.min() > MASK and ids.max() < 60
        assert subwords.decode(np.array([BEGIN, *ids, END, PAD])) == line
    folded = tokenizer.train(sentences(0, 300), 50, "bpe")
    assert folded.decode(folded.encode(["The CAT."])[0]) == "the cat."
    cased = tokenizer.train(sentences(0, 300), 50, fold_case=False)
    assert cased.decode(cased.encode(["The cat."])[0]) == "The cat."
    assert len({each.sha256 for each in (folded, cased, tokenizer.train(sentences(0, 300), 50))}) == 3


def test_long_lines_make_pieces_too():
    """SentencePiece leaves out lines of more than 4,192 bytes."""
    short, long = [*sentences(0, 300)], " ".join(["Ωmega"] * 1000)
    made = tokenizer.train([*short, long], 60, "bpe", fold_case=False)
    assert made.decode(made.encode(["Ωmega"])[0]) == "Ωmega"
    joined = tokenizer.train([" ".join(short)], 50)
    assert joined.decode(joined.encode([short[0].lower()])[0]) == short[0].lower()
    with pytest.raises(InputError, match="^data.dir: there is no text to train a tokenizer on$"):
        tokenizer.train(["", " "], 60)


LOWERED = (
    "ΤΟΥΣ ΚΑΛΟΥΣ, Όσους Σας",  # a sigma at the end of a word, in words of capitals too
    "İstanbul'da IŞIK",  # a dotted I becomes two code points
    "Große Straße, GRÖẞE",
    "ǅ ŉ և ﬁ ™ ℃ Ａ 𝐀",  # NFKC makes upper case of some
)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("line", LOWERED)
def test_folded_case_is_lower_case(tmp_path, kind, line):
    """As references have it: a model that is perfect has all of their words. A saved tokenizer reads it again."""
    size = 5 + len(set(unicodedata.normalize("NFKC", line).lower()))  # with the unknown token
    tokenizer.save(tokenizer.train([line] * 9, size, kind), tmp_path)
    subwords = tokenizer.of_run(tmp_path)
    (ids,), (of_lower,) = subwords.encode([line]), subwords.encode([line.lower()])
    assert subwords.decode(ids) == unicodedata.normalize("NFKC", line).lower()
    if line is not LOWERED[-1]:
        assert subwords.decode(ids) == line.lower() and ids.tolist() == of_lower.tolist()


def test_a_saved_tokenizer_of_folded_case_is_as_it_was(tmp_path):
    """Of a run of an earlier version: its vocabulary has no final sigma."""
    model = io.BytesIO()
    rule = {"normalization_rule_name": "nmt_nfkc_cf", "minloglevel": 2, "bos_id": -1, "eos_id": -1, "unk_id": 0}
    lines = iter(["τους καλους"] * 9)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=lines, model_writer=model, vocab_size=12, character_coverage=1.0, model_type="bpe", **rule
    )
    (tmp_path / "tokenizer.model").write_bytes(model.getvalue())
    subwords = tokenizer.read(tmp_path / "tokenizer.model")
    assert subwords.decode(subwords.encode(["ΤΟΥΣ Καλους"])[0]) == "τουσ καλουσ"


def test_tokenizers_of_folded_case_in_a_cache_are_made_again(files, tmp_path, monkeypatch):
    """Those of earlier versions; the others are found."""
    version = sentencepiece.__version__
    for options in ((), ("bpe", True, ""), ("bpe", False, "")):
        key = text_files.fingerprint(files, "tokenizer", 60, version, *options)
        tokenizer.save(tokenizer.train(["old"] * 9, 10), tmp_path, f"tokenizer-{key[:16]}.model")
    old = tokenizer.read(tmp_path / f"tokenizer-{key[:16]}.model").sha256
    options = [("unigram", True), ("bpe", True), ("bpe", False)]
    found = [tokenizer.of_text(text_files.lines(files), files, 60, tmp_path, *each).sha256 for each in options]
    assert [each == old for each in found] == [False, False, True]


def test_rare_characters_have_byte_pairs():
    lines = [*sentences(0, 300), "Übung “5”"]
    pairs = tokenizer.train(lines, 60, "bpe", fold_case=False)
    assert pairs.decode(pairs.encode(lines[-1:])[0]) == lines[-1]


@pytest.mark.parametrize("size, bound", [(5000, "most"), (8, "least")])
def test_a_number_of_byte_pairs_that_the_text_does_not_allow(monkeypatch, size, bound):
    monkeypatch.setattr(tokenizer, "SMALL_LINES", 200)
    message = f"^data.vocabulary_size={size}: the text allows at {bound} [0-9]+$"
    with pytest.raises(InputError, match=message) as error:
        tokenizer.train(sentences(0, 300), size, "bpe", fold_case=False)
    allowed = int(str(error.value).split()[-1])
    pairs = tokenizer.train(sentences(0, 300), allowed, "bpe", fold_case=False)
    assert pairs.vocabulary_size == allowed
    if bound == "most":  # what a smaller text takes by itself
        monkeypatch.setattr(tokenizer, "SMALL_LINES", 300)
        assert tokenizer.train(sentences(0, 300), size, "bpe", fold_case=False).sha256 == pairs.sha256


def test_every_kind_of_tokenizer_is_kept_apart(files, tmp_path, monkeypatch):
    options = [("unigram", True), ("unigram", False), ("bpe", True), ("bpe", False)]
    first = [tokenizer.of_text(text_files.lines(files), files, 60, tmp_path, *each).sha256 for each in options]
    assert len(set(first)) == 4
    monkeypatch.setattr(tokenizer, "train", None)
    assert [tokenizer.of_text(text_files.lines(files), files, 60, tmp_path, *each).sha256 for each in options] == first
    assert tokenizer.of_text(text_files.lines(files), files, 60, tmp_path).sha256 == first[0]


def test_finds_plain_and_zipped_files(tmp_path):
    for name in ("train.qa", "train.qa.gz", "train.qb.gz"):
        (tmp_path / name).touch()
    with pytest.raises(InputError, match=r"has train.qa and train.qa.gz: expected one of them"):
        parallel.of_file(tmp_path, "train", "qa")
    (tmp_path / "train.qa.gz").unlink()
    assert parallel.of_file(tmp_path, "train", "qa").files == [tmp_path / "train.qa"]
    assert parallel.of_file(tmp_path, "train", "qb").files == [tmp_path / "train.qb.gz"]
    with pytest.raises(InputError, match=r"no val.qb or val.qb.gz"):
        parallel.of_file(tmp_path, "val", "qb")


def test_every_line_with_its_translation(train, files, subwords):
    sources, targets = (path.read_text().splitlines() for path in files)
    assert len(train) == len(sources) == 120 and targets == list(map(translated, sources))
    for i in range(len(train)):
        batch = train.batch(np.array([i]))
        for name, text, lengths in (
            ("source", sources[i], train.source_lengths),
            ("target", targets[i], train.target_lengths),
        ):
            (row,) = batch[name]
            ids = [*subwords.encode([text])[0], END]
            assert row.dtype == np.int32 and len(row) in BUCKETS
            assert row.tolist() == ids + [PAD] * (len(row) - len(ids)) and lengths[i] == len(ids)
            assert subwords.decode(row) == text
    assert len({train.batch(np.array([i]))["source"].shape for i in range(len(train))}) == 3


def test_counts(train):
    ids = train.batch(np.arange(len(train)))
    source, target = (np.sum(ids[name] != PAD, axis=1) for name in ("source", "target"))
    assert train.source_lengths.sum() == source.sum() and train.target_lengths.sum() == target.sum()
    assert train.lengths.tolist() == np.maximum(source, target).tolist()
    assert train.length_ratio == pytest.approx(np.mean([a / b for a, b in zip(source, target, strict=True)]))
    assert train.length_ratio > 1, "articles are left out"
    assert train.skipped.tolist() == []


def test_batches_are_as_long_as_the_smallest_bucket_that_holds_them(train):
    short, long = np.argmin(train.lengths), np.argmax(train.lengths)
    assert train.lengths[short] <= 24 and 48 < train.lengths[long] <= 72
    assert train.batch(np.array([short]))["source"].shape == (1, 24)
    assert train.batch(np.array([short, long]))["target"].shape == (2, 72)
    narrow = dataclasses.replace(train, buckets=(10, 15))
    assert narrow.batch(np.array([long]))["source"].shape == (1, 15 * -(-train.lengths[long] // 15)), "is not cut"


def test_rows_without_example(train):
    batch, whole = train.batch(np.array([3, -1, 5])), train.batch(np.array([3, 5]))
    for name in ("source", "target"):
        assert batch[name][1].tolist() == [PAD] * batch[name].shape[1]
        np.testing.assert_array_equal(batch[name][[0, 2]], whole[name])
    for number, length in enumerate(BUCKETS):
        only = train.batch(np.full(2, -1 - number))
        assert {name: array.tolist() for name, array in only.items()} == {
            name: [[PAD] * length] * 2 for name in ("source", "target")
        }


def test_parts(train):
    order = np.array([7, 3, 5])
    part = train.select(order).select(np.array([2, 0]))
    assert part.numbers.tolist() == [5, 7] and part.lengths.tolist() == train.lengths[[5, 7]].tolist()
    assert len(train.select(slice(5))) == 5 and len(train.select(slice(999))) == len(train)
    by_length = train.by_length()
    assert by_length.numbers.tolist() == sorted(range(len(train)), key=lambda i: train.lengths[i])
    short = dataclasses.replace(train, buckets=(24, 48))
    kept = short.within_limit()
    assert kept.numbers.tolist() == [i for i in range(len(train)) if train.lengths[i] <= 48]
    assert short.num_too_long == len(train) - len(kept) > 0 and kept.num_too_long == 0


def test_the_order_is_of_its_lengths(train):
    order = dataclasses.replace(train, row_multiple=1, batch_unit="places").order(96, 1, seed=0)
    assert order.examples_per_step == train.target_lengths.sum() / order.steps_per_epoch
    ids = [np.asarray(order.dataset()[i]) for i in range(order.steps_per_epoch)]
    assert sorted(i for each in ids for i in each if i >= 0) == list(range(len(train)))
    for each in ids:
        assert train.batch(each)["source"].size <= 96


def test_processes_pad_alike(train):
    """Also where one of them has rows without example alone."""
    one = train.select(np.flatnonzero(train.lengths > 48)[:1])
    one = dataclasses.replace(one, row_multiple=2, batch_unit="places")
    ids = one.order(144, 1, seed=0).dataset()
    assert np.asarray(ids[0]).tolist() in ([0, -3], [-3, 0])
    batches = [next(training_batches(one.batch, ids, 1, Share((index,), 2))) for index in range(2)]
    assert [batch["source"].shape for batch in batches] == [(1, 72), (1, 72)]


def test_a_text_is_tokenised_once(files, subwords, tmp_path, monkeypatch, train):
    of_files(files, (subwords, subwords), BUCKETS, tmp_path)
    monkeypatch.setattr(lines_, "write", None)
    again = of_files(files, (subwords, subwords), BUCKETS, tmp_path)
    swapped = of_files(files[::-1], (subwords, subwords), BUCKETS, tmp_path)
    batch = train.batch(np.arange(9))
    for name, array in again.batch(np.arange(9)).items():
        np.testing.assert_array_equal(array, batch[name])
    np.testing.assert_array_equal(swapped.batch(np.arange(9))["source"], batch["target"])
    assert [path.name[:6] for path in tmp_path.iterdir()] == ["lines-"] * 2, "nothing half-written is left"


@pytest.mark.parametrize("chunk", [1, 7])
def test_whatever_is_read_at_a_time(files, subwords, tmp_path, monkeypatch, train, chunk):
    monkeypatch.setattr(lines_, "CHUNK", chunk)
    again = of_files(files, (subwords, subwords), BUCKETS, tmp_path)
    np.testing.assert_array_equal(again.source_ids, train.source_ids)
    np.testing.assert_array_equal(again.target_starts, train.target_starts)


def test_zipped_files_and_a_last_line_without_end(files, subwords, tmp_path, train):
    for path in files:
        (tmp_path / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes().removesuffix(b"\n")))
    zipped = [tmp_path / f"{path.name}.gz" for path in files]
    again = of_files(zipped, (subwords, subwords), BUCKETS, tmp_path / "cache")
    assert len(again) == len(train)
    np.testing.assert_array_equal(again.target_ids, train.target_ids)


def test_empty_lines(subwords, tmp_path):
    """Of both sides are left out; of one are refused, or skipped. No-width spaces alone are no text."""
    good = of_lines(tmp_path, subwords, ["The cat.", "", "A dog."], ["tac.", " ", "god."])
    assert good.numbers.tolist() == [0, 2] and good.skipped.tolist() == []
    sides = ["The cat.", "The dog.", "", "A dog."], ["tac.", "\u200b", "", "god."]
    message = r"a.qb: line 2 is empty, that of .*a.qa is not .one of 1; data.malformed=\"skip\" leaves them out.$"
    with pytest.raises(InputError, match=message):
        of_lines(tmp_path, subwords, *sides)
    skipped = of_lines(tmp_path, subwords, *sides, "skip")
    assert skipped.numbers.tolist() == [0, 3] and skipped.skipped.tolist() == [1]
    assert [subwords.decode(row) for row in skipped.batch(np.arange(2))["target"]] == ["tac.", "god."]
    with pytest.raises(InputError, match=r"a.qa: line 2 is empty"):
        of_lines(tmp_path, subwords, *sides[::-1])


def test_malformed_files(subwords, tmp_path, unchecked):
    with pytest.raises(InputError, match=r"a.qa has 2 lines, .*a.qb has 3"):
        of_lines(tmp_path, subwords, ["The cat."] * 2, ["tac."] * 3)
    for sides, name in (((["The cat."], []), "a.qb"), ((["", ""], ["tac.", "god."]), "a.qa")):
        with pytest.raises(InputError, match=rf"{name}: no line with text$"):
            of_lines(tmp_path, subwords, *sides)
    with pytest.raises(InputError, match=r"a.qa, .*a.qb: no line"):
        of_lines(tmp_path, subwords, ["", "The cat."], ["tac.", ""], "skip")
    (tmp_path / "a.qb").write_bytes(b"fine\nnot \xff\n")
    for _ in range(2):  # nothing is kept of it
        with pytest.raises(InputError, match=r"a.qb: line 2 is no UTF-8$"):
            of_files([tmp_path / "a.qa", tmp_path / "a.qb"], (subwords, subwords), BUCKETS, tmp_path / "cache")
    assert not list((tmp_path / "cache").glob(".*"))


@pytest.mark.parametrize("buckets", [(), (16, 8), (16, 16), (1, 8)])
def test_buckets_that_are_none(files, subwords, tmp_path, buckets):
    with pytest.raises(InputError, match=r"^data.buckets=\(.*\): .*ascending"):
        of_files(files, (subwords, subwords), buckets, tmp_path)


@pytest.fixture(scope="module")
def made_set(tmp_path_factory):
    tfds = pytest.importorskip("tensorflow_datasets")

    class MadeTranslate(tfds.core.GeneratorBasedBuilder):
        """Parallel text in the form in which tensorflow-datasets has that of WMT."""

        VERSION = tfds.core.Version("1.0.0")
        BUILDER_CONFIGS = (tfds.core.BuilderConfig(name="qb-qa"),)

        def _info(self):
            return self.dataset_info_from_configs(features=tfds.features.Translation(languages=LANGUAGES))

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples(9), "validation": self._generate_examples(4)}

        def _generate_examples(self, number):
            for i, line in enumerate(sentences(number, number)):
                yield i, {"qa": f" {line}", "qb": translated(line)}

    folder = tmp_path_factory.mktemp("tfds")
    MadeTranslate(data_dir=folder, file_format="array_record").download_and_prepare()
    return folder


def test_prepared_sets(made_set, subwords, tmp_path, monkeypatch):
    folder = prepared.find("made_translate/qb-qa", made_set)
    assert folder is not None and prepared.find("made_translate/qc-qa", made_set) is None
    lines = list(prepared.lines(folder, "train", "qa"))
    assert sorted(lines) == sorted(sentences(9, 9))

    def of_split(split, languages=LANGUAGES):
        sides = [parallel.of_prepared(folder, split, language) for language in languages]
        return parallel.of_text(*sides, (subwords, subwords), BUCKETS, tmp_path)

    found = of_split("train")
    batch = found.batch(np.arange(9))
    assert [subwords.decode(row) for row in batch["source"]] == lines
    assert [subwords.decode(row) for row in batch["target"]] == list(map(translated, lines))
    assert len(of_split("validation")) == 4
    monkeypatch.setattr(lines_, "write", None)
    swapped = of_split("train", LANGUAGES[::-1])
    np.testing.assert_array_equal(swapped.target_ids, found.source_ids)


def test_a_tokenizer_of_a_prepared_set(made_set, tmp_path, monkeypatch):
    folder = prepared.find("made_translate/qb-qa", made_set)

    def of_split(split):
        lines = prepared.lines(folder, split, "qa")
        return tokenizer.of_text(lines, prepared.files(folder), 50, tmp_path, "bpe", False, split)

    first = of_split("train")
    assert of_split("validation").sha256 != first.sha256
    monkeypatch.setattr(tokenizer, "train", None)
    assert of_split("train").sha256 == first.sha256


def test_what_a_prepared_set_has_not(made_set):
    folder = prepared.find("made_translate/qb-qa", made_set)
    with pytest.raises(InputError, match='"test": it has train, validation'):
        list(prepared.lines(folder, "test", "qa"))
    with pytest.raises(InputError, match='no language "qc": it has qa, qb$'):
        list(prepared.lines(folder, "train", "qc"))


def test_a_damaged_prepared_set(tmp_path):
    pytest.importorskip("tensorflow_datasets")
    (tmp_path / "dataset_info.json").write_text("{}")
    with pytest.raises(InputError, match="prepare it again .*array_record"):
        list(prepared.lines(tmp_path, "train", "qa"))
