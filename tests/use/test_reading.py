"""Every command reads a text as training does: white space, ends of lines and byte order marks."""

import io
import itertools
import json
import pathlib
import types

import numpy as np
import pytest

from posattn_jax.data.pipeline.data_set import Reading
from posattn_jax.data.text import corpus, glue, lines, parallel, text_files
from posattn_jax.data.text.characters import Characters
from posattn_jax.data.text.corpus import SentencePairs
from posattn_jax.data.text.sentence_files import SentenceFiles
from posattn_jax.data.text.sequences import Sentences
from posattn_jax.data.text.translations import Translations
from posattn_jax.data.text.words import Words, WordSequences
from posattn_jax.data.tokenizers import tokenizer, tokenizer_json
from posattn_jax.use import generate, translate
from posattn_jax.use.trained import TrainedRun
from tests.support.made_text import sentences

pytestmark = pytest.mark.usefixtures("unchecked")  # runs here have no model

SPACES = {
    "tab": "\t",
    "vertical tab": "\v",
    "form feed": "\f",
    "return": "\r",
    "file separator": "\x1c",
    "next line": "\x85",
    "no-break space": "\xa0",
    "thin space": "\u2009",
    "line separator": "\u2028",
    "paragraph separator": "\u2029",
    "narrow no-break space": "\u202f",
    "ideographic space": "\u3000",
    "two spaces": "  ",
}
READ = ["The cat sees a dog.", "A ship finds the green tree."]  # with every kind of white space


def written(tabs=True):
    """READ for each white space: between words, at the start and at the end of a line."""
    return [
        line
        for space in SPACES.values()
        if tabs or space != "\t"
        for line in (
            f"The{space}cat sees{space}{space}a dog.",
            f"{space}A ship finds{space}the{space}green tree.{space}",
        )
    ]


def as_file(rows):
    """With a byte order mark, and with both ends of lines."""
    first, *others = rows
    return "\n".join([f"\ufeff{first}\r", *others, ""]).encode()


@pytest.fixture(scope="module")
def subwords():
    """They leave white space as it is."""
    text = [*READ, *sentences(0, 300)]
    return tokenizer.train(text, 70, "bpe", fold_case=False, normalization="none")


def rows_of(ids, starts, end):
    return [ids[first : last - end] for first, last in itertools.pairwise(starts)]


def of_training(rows, folder, subwords):
    (folder / "train.qa").write_bytes(as_file(rows))
    ids, starts = lines.tokenised(parallel.of_file(folder, "train", "qa"), subwords, folder)
    return rows_of(ids, starts, end=1)


def of_evaluation(rows, folder, subwords):
    for language in ("qa", "qb"):
        (folder / f"test.{language}").write_bytes(as_file(rows))
    part = types.SimpleNamespace(numbers=np.arange(len(rows)))
    originals, references = Translations(dir=str(folder), source="qa", target="qb").sentences(part, "test")
    assert originals == references
    return subwords.encode(originals)


def of_translate(rows, folder, subwords, monkeypatch):
    found = []

    class Translator:
        batch_size, num_beyond = 1, 0

        def __call__(self, some, numbers):
            found.extend(subwords.encode(some))
            return some

    monkeypatch.setattr(translate, "of_run", lambda *_: (Translator(), None))
    monkeypatch.setattr(translate.experiment, "keep_programs", lambda _: None)
    translate.translate(folder, None, io.BytesIO(as_file(rows)), io.StringIO())
    return found


def of_corpus(rows, folder, subwords):
    (folder / "a.txt").write_bytes(as_file(rows))
    pairs = corpus.of_text([folder / "a.txt"], subwords, 30, folder)
    return rows_of(pairs.ids, pairs.starts, end=0)


def of_words(rows, folder, subwords):
    (folder / "a.txt").write_bytes(as_file(rows))
    found = Words(length=60).read([folder / "a.txt"], subwords, folder)
    return rows_of(found.ids, found.starts, end=0)


def of_command(source):
    """As --mode=predict and --mode=explain read a sentence."""

    def read(rows, folder, subwords):
        run = TrainedRun(folder, *[None] * 5, source=source(subwords))
        asked = [parts for _, parts in run.read_lines(io.BytesIO(as_file(rows)), ())]
        return [ids for (ids,) in run.examples(asked).examples]

    return read


def of_glue(rows, folder, subwords):
    (folder / "SST-2").mkdir()
    cells = [f"{row}\t{i % 2}" for i, row in enumerate(rows)]
    (folder / "SST-2" / "train.tsv").write_bytes(as_file(["sentence\tlabel", *cells]))
    return [ids for (ids,) in glue.Glue("sst2", str(folder)).read("train", subwords).examples]


def of_table(suffix):
    def read(rows, folder, subwords):
        cells = [(row, ("no", "yes")[i % 2]) for i, row in enumerate(rows)]
        made = {
            ".tsv": ["sentence\tlabel", *map("\t".join, cells)],
            ".csv": ["sentence,label", *(f'"{row}",{label}' for row, label in cells)],
            ".jsonl": [json.dumps({"sentence": row, "label": label}, ensure_ascii=False) for row, label in cells],
        }[suffix]
        for part in ("train", "dev"):
            (folder / f"{part}{suffix}").write_bytes(as_file(made))
        tokenizer.save(subwords, folder / "run")
        sources = SentenceFiles(str(folder)).load(Reading(1, pretrained=folder / "run"))
        return [ids for (ids,) in sources["train"].examples]

    return read


NOTHING = np.zeros(0, np.int32)
READERS = {
    "training": of_training,
    "evaluate": of_evaluation,
    "corpus": of_corpus,
    "words": of_words,
    "predict": of_command(lambda subwords: Sentences([], NOTHING, NOTHING, 60, subwords, num_parts=1)),
    "predict words": of_command(lambda subwords: WordSequences(NOTHING, NOTHING, NOTHING, 60, subwords)),
    "explain text": of_command(lambda subwords: SentencePairs(NOTHING, NOTHING, NOTHING, 60, subwords)),
    "glue": of_glue,
    "tsv": of_table(".tsv"),
    "csv": of_table(".csv"),
    "jsonl": of_table(".jsonl"),
}
WITH_TABS = ("explain text", "glue", "tsv")  # where a tab separates two sentences or two cells


def check(found, subwords, rows):
    expected = [subwords.encode([READ[i % 2]])[0].tolist() for i in range(len(rows))]
    assert [ids.tolist() for ids in found] == expected


@pytest.mark.parametrize("reader", READERS)
def test_white_space(tmp_path, subwords, reader):
    rows = written(tabs=reader not in WITH_TABS)
    check(READERS[reader](rows, tmp_path, subwords), subwords, rows)


def test_white_space_of_what_is_translated(tmp_path, subwords, monkeypatch):
    check(of_translate(written(), tmp_path, subwords, monkeypatch), subwords, written())


def test_white_space_of_a_bert():
    """A tokenizer of others reads it in the same way; what it makes of accents and upper case stays."""
    pytest.importorskip("tokenizers")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "straße", "strasse", "cafe"]
    subwords = tokenizer_json.of_vocabulary("\n".join(pieces), {})
    for space in SPACES.values():
        (ids,) = subwords.encode([f"The{space}CAT café Straße"])
        assert subwords.pieces(ids) == ["the", "cat", "cafe", "straße"]


def test_a_tokenizer_is_trained_on_what_is_read():
    models = [tokenizer.train([f"a{space}b c{space}d"] * 9, 12, "bpe", False, "none") for space in (" ", "\xa0", "\t")]
    assert len({each.sha256 for each in models}) == 1


def test_only_an_end_of_a_line_ends_a_line(tmp_path):
    (tmp_path / "a.txt").write_bytes("\ufeffone\u2028two\x85three\rfour\v\r\nfive\r\r\n\ufeffsix".encode())
    assert list(text_files.lines([tmp_path / "a.txt"])) == ["one two three four", "five", "\ufeffsix", ""]
    output = list(text_files.sentences(io.BytesIO(b"\xef\xbb\xbf\r\na\r\n"), "input"))
    assert output == ["", "a"], "a line with a byte order mark alone is empty"


def test_bytes_have_one_end_of_lines(tmp_path, monkeypatch):
    """Those of a language model of characters: in training, and in the prompt of what is generated."""
    text, plain = b"\xef\xbb\xbfThe dog\r\nsees \r a cat.\r\n", b"The dog\nsees \r a cat.\n"
    for part in ("train", "validation"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "a.txt").write_bytes(text)
    parts = Characters(str(tmp_path / "train"), str(tmp_path / "validation"), length=9).load(Reading(1))
    assert bytes(parts["train"].text) == plain
    asked = []

    class Generator:
        def __init__(self, *_):
            pass

        def tokens(self, prompt, number, seed):
            asked.append(bytes(prompt.astype(np.uint8)))
            yield np.zeros(0, np.int32)

    run = types.SimpleNamespace(
        task=types.SimpleNamespace(model=types.SimpleNamespace(vocabulary_size=256)), params=None, config=None
    )
    monkeypatch.setattr(generate.trained, "of_run", lambda *_: run)
    monkeypatch.setattr(generate.experiment, "keep_programs", lambda _: None)
    monkeypatch.setattr(generate, "Generator", Generator)
    output = io.StringIO()
    generate.generate(pathlib.Path(), text, output)
    assert asked == [plain] and output.getvalue() == plain.decode() + "\n"
