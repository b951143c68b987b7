"""Labelled sentences of a user's own, in TSV, CSV and JSONL."""

import json
import re

import numpy as np
import pytest

from posattn_jax.data.pipeline.data_set import Reading
from posattn_jax.data.text.sentence_files import SentenceFiles
from posattn_jax.data.tokenizers import tokenizer
from posattn_jax.system.errors import InputError
from tests.support.made_own import labelled, write_table
from tests.support.made_text import sentences

HEADER = ("sentence", "label")
A, B, C = sentences(5, 3)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run folder with a tokenizer, to start from."""
    folder = tmp_path_factory.mktemp("run")
    tokenizer.save(tokenizer.train(sentences(0, 300), 50), folder)
    return folder


def load(path, run, evaluates=False, **fields):
    return SentenceFiles(str(path), **fields).load(Reading(1, evaluates=evaluates, pretrained=run))


def texts(source):
    return [tuple(source.tokenizer.decode(part) for part in parts) for parts in source.examples]


def read_again(run, *rows):
    subwords = tokenizer.of_run(run)
    return [tuple(subwords.decode(part) for part in subwords.encode(row)) for row in rows]


@pytest.mark.parametrize("suffix", [".tsv", ".csv", ".jsonl"])
def test_formats(tmp_path, run, suffix):
    rows = [("7", "good", A, B), ("8", "bad", B, C), ("9", "good", C, A)]
    header = ("id", "mood", "first", "second")
    for part, cells in (("train", rows), ("dev", rows[1:]), ("test", rows[2:])):
        write_table(tmp_path / f"{part}{suffix}", header, cells)
    fields = {"sentences": ("first", "second"), "label": "mood"}
    sources = load(tmp_path, run, evaluates=True, **fields)
    assert texts(sources["train"]) == read_again(run, (A, B), (B, C), (C, A))
    assert [sources[part].targets.tolist() for part in ("train", "validation", "test")] == [[1, 0, 1], [0, 1], [1]]
    assert sources["train"].names == ("bad", "good") and sources["train"].num_parts == 2
    knows = sources["test"].knows
    assert (knows["num_outputs"], knows["metric"], knows["num_examples"]) == (2, "accuracy", 3)
    assert set(load(tmp_path, run, **fields)) == {"train", "validation"}
    assert set(SentenceFiles(str(tmp_path)).files()) == {
        f"data.dir/{each}{suffix}" for each in ("train", "dev", "test")
    }


def test_csv_has_quotes_and_tsv_has_none(tmp_path, run):
    quoted = f'"{A}\nand ""{B}"""'
    (tmp_path / "a.csv").write_bytes(f'\ufefflabel,sentence\r\nx,{quoted}\r\n\r\ny,"{C}"\r\n'.encode())
    sources = load(tmp_path / "a.csv", run)
    both = [*texts(sources["train"]), *texts(sources["validation"])]
    assert sorted(both) == sorted(read_again(run, (f'{A}\nand "{B}"',), (C,)))
    (tmp_path / "a.tsv").write_bytes(f'\ufefflabel\tsentence\r\nx\t"{A}\r\ny\t{B}\rand {C}\r\n'.encode())
    sources = load(tmp_path / "a.tsv", run)
    both = [*texts(sources["train"]), *texts(sources["validation"])]
    assert sorted(both) == sorted(read_again(run, (f'"{A}',), (f"{B}\rand {C}",)))


@pytest.mark.parametrize(
    "labels, fields, names, metric",
    [
        ([0, 1, 1, 0], {}, ("0", "1"), "accuracy"),
        ([9, 10, 2, 9], {"metric": "matthews"}, ("2", "9", "10"), "matthews"),
        (["a", "b", "a", "b"], {"metric": "accuracy_f1"}, ("a", "b"), "accuracy_f1"),
        ([True, False, True, False], {}, ("false", "true"), "accuracy"),
        ([0.5, 1, -2, 3], {}, (), "correlation"),
        ([0, 1, 2, 3], {"target": "number"}, (), "correlation"),
        ([0.5, 1.5, 0.5, 1.5], {"target": "class"}, ("0.5", "1.5"), "accuracy"),
        ([1, 2.0, "1.0", 2], {}, ("1", "2"), "accuracy"),
        (["v1.0", "v2", "v1.0", "v2"], {}, ("v1.0", "v2"), "accuracy"),
        ([0.5, "a", "b", 1], {}, ("0.5", "1", "a", "b"), "accuracy"),
    ],
)
def test_what_labels_are(tmp_path, run, labels, fields, names, metric):
    path = write_table(tmp_path / "a.jsonl", HEADER, [(A, label) for label in labels])
    source = load(path, run, **fields)["train"]
    assert (source.names, source.metric) == (names, metric)
    told = [names[target] for target in source.targets] if names else source.targets.tolist()
    kept = np.random.default_rng(1).permutation(4)[:3]
    assert told == [
        json.dumps(labels[i]).strip('"').replace(".0", "" if names == ("1", "2") else ".0") if names else labels[i]
        for i in kept
    ]


def test_a_label_that_is_no_number_is_no_class(tmp_path, run):
    """A program that writes JSON writes NaN for a label that is missing."""
    path = write_table(tmp_path / "a.jsonl", HEADER, [(A, 0), (B, 1), (C, float("nan")), (A, 1)])
    with pytest.raises(InputError, match='a.jsonl: line 3: "label" is NaN: expected a text .*malformed rows: 1, '):
        load(path, run)
    path = write_table(tmp_path / "b.jsonl", HEADER, [(A, 0.5), (B, 1), (C, "1_0.5"), (A, 1)])
    with pytest.raises(InputError, match='label "1_0.5": expected a finite number'):
        load(path, run)


def test_without_a_start_the_text_makes_the_tokenizer(tmp_path):
    path = write_table(tmp_path / "a.tsv", HEADER, labelled(300))
    reading = Reading(1, tmp_path / "cache")
    sources = SentenceFiles(str(path), vocabulary_size=50).load(reading)
    assert sources["train"].knows["vocabulary_size"] == 50
    assert (len(sources["train"]), len(sources["validation"])) == (240, 60)


def test_a_small_text_has_the_subwords_that_it_has(tmp_path, capsys):
    path, reading = write_table(tmp_path / "a.tsv", HEADER, labelled(300)), Reading(1, tmp_path / "cache")
    for _ in range(2):  # the second is from the cache
        size = SentenceFiles(str(path)).load(reading)["train"].knows["vocabulary_size"]
        assert f"data.vocabulary_size=4096: the text allows at most {size}" in capsys.readouterr().out
    assert 50 < size < 4096
    with pytest.raises(InputError, match="data.vocabulary_size=9: .*at least"):
        SentenceFiles(str(path), vocabulary_size=9).load(reading)


def test_a_run_keeps_its_labels(tmp_path, run):
    path = write_table(tmp_path / "a.tsv", HEADER, [(A, "yes"), (B, "no"), (C, "no"), (A, "yes")])
    data, workdir = SentenceFiles(str(path)), tmp_path / "run"
    load(path, run)["train"].save(workdir)
    assert data.classes_of(workdir) == ("no", "yes")
    assert data.empty(workdir).knows["num_outputs"] == 2

    def evaluated_on(folder, number):
        for part in ("train", "val"):
            write_table(folder / f"{part}.tsv", HEADER, [(A, "yes")] * number)
        return SentenceFiles(str(folder)).load(Reading(1, workdir=workdir, evaluates=True))

    with pytest.raises(InputError, match="4 rows: .*at most 3"):
        evaluated_on(tmp_path / "more", 4)
    assert len(evaluated_on(tmp_path / "less", 3)["validation"]) == 3
    write_table(path, HEADER, [(A, "yes"), (B, "maybe")])
    with pytest.raises(InputError, match='a.tsv: line 3: label "maybe": .*no, yes'):
        data.load(Reading(1, workdir=workdir, evaluates=True))


# What is in a file after a header and two good rows, and what is told of it.
MALFORMED = [
    (".tsv", b"alone", "line 4: columns: 1, expected 2"),
    (".tsv", b"", "line 4: columns: 1, expected 2"),
    (".tsv", b"A cat.\t", 'line 4: "label" is empty: expected a text'),
    (".tsv", b" \tyes", r'line 4: "sentence" is " ": expected a text'),
    (".tsv", b"A \xff cat.\tyes", 'line 4: "sentence" is no UTF-8'),
    (".csv", b"A cat.,yes,", "line 4: columns: 3, expected 2"),
    (".csv", b'"A" cat.,yes', r"line 4: .*expected after.*"),
    (".jsonl", b"", r"line 3: no JSON \(.*\)"),
    (".jsonl", b'{"sentence": "A cat."', r"line 3: no JSON \(.*\)"),
    (".jsonl", b'["A cat.", "yes"]', "line 3: expected a JSON object"),
    (".jsonl", b'{"sentence": "A cat."}', 'line 3: "label" is missing: expected a text'),
    (".jsonl", b'{"sentence": 3, "label": "yes"}', 'line 3: "sentence" is 3: expected a text'),
    (".jsonl", b'{"sentence": "A", "label": ["yes"]}', r'line 3: "label" is \["yes"\]: expected a text'),
    (".jsonl", b'{"sentence": "\\ud800", "label": "yes"}', 'line 3: "sentence" is no UTF-8'),
]


@pytest.mark.parametrize("suffix, row, message", MALFORMED)
def test_malformed_rows(tmp_path, run, capsys, suffix, row, message):
    path = write_table(tmp_path / f"a{suffix}", HEADER, [(A, "yes"), (B, "no")])
    path.write_bytes(path.read_bytes() + row + b"\n")
    with pytest.raises(InputError, match=rf"\A{path}: {message} .*malformed rows: 1"):
        load(path, run)
    sources = load(path, run, malformed="skip")
    assert len(sources["train"]) + len(sources["validation"]) == 2
    assert "left out: 1, next to 2" in capsys.readouterr().out


def test_every_malformed_row_is_told(tmp_path, run, capsys):
    """Whether the file is refused or they are left out."""
    path = write_table(tmp_path / "a.tsv", HEADER, [(A, "yes"), ("", "no"), (B, "no"), (C, "")])
    told = f'{path}: line 3: "sentence" is empty: expected a text', f'{path}: line 5: "label" is empty: expected a text'
    with pytest.raises(InputError, match=re.escape(f"{told[0]} (malformed rows: 2, ")):
        load(path, run)
    assert capsys.readouterr().out == f"train: malformed: {told[1]}\n"
    load(path, run, malformed="skip")
    assert capsys.readouterr().out.splitlines()[:2] == [f"train: left out: {each}" for each in told]


def test_a_quote_that_is_never_closed_costs_one_row(tmp_path, run, capsys):
    path = write_table(tmp_path / "a.csv", HEADER, [(A, "yes"), (B, "no")])
    path.write_bytes(path.read_bytes() + f'"{A},yes\n"{B}\n{C}",no\n{C},yes\n"a\nb" c,no\n'.encode())
    with pytest.raises(InputError, match=rf"{path}: line 4: .* \(malformed rows: 3, "):
        load(path, run)
    told = capsys.readouterr().out.splitlines()
    assert [each.partition(": line ")[2] for each in told] == [
        "8: ',' expected after '\"'",
        "9: a quote in a cell that does not begin with one",
    ]
    capsys.readouterr()
    sources = load(path, run, malformed="skip")
    both = [*texts(sources["train"]), *texts(sources["validation"])]
    assert sorted(both) == sorted(read_again(run, (A,), (B,), (f"{B}\n{C}",), (C,)))
    assert f"train: left out: {path}: line 4: " in capsys.readouterr().out


def test_a_label_that_is_no_number_is_malformed_among_numbers(tmp_path, run):
    path = write_table(tmp_path / "a.tsv", HEADER, [(A, "1.5"), (B, "2"), (A, "n/a"), (C, "0")])
    message = f'{path}: line 4: label "n/a": expected a finite number, or data.target=class (malformed labels: 1, '
    with pytest.raises(InputError, match=re.escape(message)):
        load(path, run)
    sources = load(path, run, malformed="skip")
    assert sources["train"].names == () and len(sources["train"]) + len(sources["validation"]) == 3


def test_labels_that_nothing_was_trained_on(tmp_path, run):
    write_table(tmp_path / "train.tsv", HEADER, [(A, "yes"), (B, "no")])
    path = write_table(tmp_path / "val.csv", HEADER, [(A, "yes"), (B, "maybe")])
    with pytest.raises(InputError, match=rf'\A{path}: line 3: label "maybe"'):
        load(tmp_path, run)
    assert len(load(tmp_path, run, malformed="skip")["validation"]) == 1
    write_table(path, HEADER, [(A, "nan")])
    write_table(tmp_path / "train.tsv", HEADER, [(A, "1.5"), (B, "2")])
    with pytest.raises(InputError, match=rf'\A{path}: line 2: label "nan"'):
        load(tmp_path, run)


def test_wrong_files(tmp_path, run):
    with pytest.raises(InputError, match="nothing to train on .*train.jsonl"):
        load(tmp_path, run)
    path = write_table(tmp_path / "a.txt", HEADER, [])
    with pytest.raises(InputError, match="expected .*.tsv, .csv, .jsonl"):
        load(path, run)
    path = write_table(tmp_path / "a.tsv", ("text", "label"), [(A, "yes")])
    with pytest.raises(InputError, match=r'a.tsv: line 1: .*"sentence" .*text, label'):
        load(path, run)
    with pytest.raises(InputError, match=r'a.tsv: classes: 1 \("yes"\)'):
        load(path, run, sentences=("text",))
    write_table(path, HEADER, [])
    with pytest.raises(InputError, match="the train part has no rows"):
        load(path, run)
    write_table(path, HEADER, [(A, "1.5"), (B, "2")])
    with pytest.raises(InputError, match='data.metric="accuracy": .*correlation'):
        load(path, run, metric="accuracy")
    write_table(path, HEADER, [(A, "x"), (B, "y"), (C, "z")])
    with pytest.raises(InputError, match='data.metric="accuracy_f1": .*matthews'):
        load(path, run, metric="accuracy_f1")
    with pytest.raises(ValueError, match=r"sentences=\(\)"):
        SentenceFiles(sentences=())
