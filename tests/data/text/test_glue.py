"""GLUE's tasks in their official files, and their answers."""

import numpy as np
import pytest

from configs import glue as glue_config
from posattn_jax.config.parts import build, change
from posattn_jax.data.text import glue
from posattn_jax.data.tokenizers import tokenizer
from posattn_jax.system.errors import InputError
from tests.support.made_text import sentences, write_mnli, write_rte, write_tsv

tfds = pytest.importorskip("tensorflow_datasets")
A, B, C = sentences(5, 3)


@pytest.fixture(scope="module")
def subwords():
    return tokenizer.train(sentences(0, 300), 50)


def load(name, folder, part, subwords, length=40, malformed="refuse"):
    return glue.Glue(name, str(folder), length, malformed).read(part, subwords)


# Of each task: files, as their rows, and the texts, targets and groups that are read.
OFFICIAL = {
    "cola": ({"train": [("gj04", 1, "", A), ("gj04", 0, "*", B)]}, [(A,), (B,)], [1, 0], [0, 0]),
    "sst2": ({"train": [("sentence", "label"), (A, 0)]}, [(A,)], [0], [0]),
    "mrpc": (
        {"train": [("\ufeffQuality", "#1 ID", "#2 ID", "#1 String", "#2 String"), (1, 17, 18, A, f'" {B}')]},
        [(A, f'" {B}')],
        [1],
        [0],
    ),
    "qqp": (
        {"train": [("id", "qid1", "qid2", "question1", "question2", "is_duplicate"), (7, 1, 2, A, B, 1)]},
        [(A, B)],
        [1],
        [0],
    ),
    "stsb": (
        {"train": [("index", "genre", "sentence1", "sentence2", "score"), (0, "x", A, B, "3.250")]},
        [(A, B)],
        [3.25],
        [0],
    ),
    "mnli": (
        {
            "dev_matched": [
                ("index", "sentence1", "sentence2", "label1", "gold_label"),
                (0, A, B, "neutral", "neutral"),
            ],
            "dev_mismatched": [("index", "sentence1", "sentence2", "gold_label"), (0, B, C, "contradiction")],
        },
        [(A, B), (B, C)],
        [1, 2],
        [0, 1],
    ),
    "qnli": (
        {"train": [("index", "question", "sentence", "label"), (0, A, B, "entailment")]},
        [(A, B)],
        [0],
        [0],
    ),
    "rte": ({"train": [("index", "sentence1", "sentence2", "label"), (0, A, B, "not_entailment")]}, [(A, B)], [1], [0]),
    "wnli": ({"train": [("index", "sentence1", "sentence2", "label"), (0, A, B, 1)]}, [(A, B)], [1], [0]),
}


@pytest.mark.parametrize("name", glue.TASKS)
def test_official_files(tmp_path, subwords, name):
    files, texts, targets, groups = OFFICIAL[name]
    for file, rows in files.items():
        write_tsv(tmp_path / glue.TASKS[name].folder / f"{file}.tsv", rows)
    part = "dev" if name == "mnli" else "train"
    found = load(name, tmp_path, part, subwords)
    assert [[subwords.decode(part) for part in parts] for parts in found.examples] == [
        [subwords.decode(ids) for ids in subwords.encode(each)] for each in texts
    ]
    assert found.targets.tolist() == targets and found.groups.tolist() == groups
    assert found.targets.dtype == (np.float32 if name == "stsb" else np.int32)


def test_test_files_have_a_header_and_no_label(tmp_path, subwords):
    write_tsv(tmp_path / "CoLA" / "test.tsv", [("index", "sentence"), (0, A), (1, B)])
    found = load("cola", tmp_path, "test", subwords)
    assert len(found) == 2 and found.targets.tolist() == [0, 0]


def test_the_diagnostic_set_is_one_more_test_set_of_mnli(tmp_path, subwords):
    write_mnli(tmp_path)
    assert load("mnli", tmp_path, "test", subwords).groups.max() == 1
    path = write_tsv(tmp_path / "diagnostic" / "diagnostic.tsv", [HEADER[:3], (0, A, B), (1, B, C)])
    test, dev = (load("mnli", tmp_path, part, subwords) for part in ("test", "dev"))
    assert test.groups.tolist() == [0] * 24 + [1] * 5 + [2] * 2 and dev.groups.max() == 1
    assert [subwords.decode(each) for each in test.examples[-1]] == [
        subwords.decode(each) for each in subwords.encode([B, C])
    ]
    files = lambda name: glue.Glue(name, str(tmp_path)).files().values()
    assert path in files("mnli") and path not in files("rte")
    written = glue.write_answers("mnli", np.zeros(31), test.groups, tmp_path / "answers")
    assert [each.name for each in written] == ["MNLI-m.tsv", "MNLI-mm.tsv", "AX.tsv"]
    assert written[2].read_text() == "index\tprediction\n0\tentailment\n1\tentailment\n"


def test_batches(tmp_path, subwords):
    train = load("rte", write_rte(tmp_path), "train", subwords, 12)
    batch = train.batch(np.array([3, 0]))
    assert {name: array.shape for name, array in batch.items()} == {
        "tokens": (2, 12),
        "segments": (2, 12),
        "targets": (2,),
        "groups": (2,),
        "ids": (2,),
    }
    assert batch["ids"].tolist() == [3, 0] and batch["targets"].tolist() == [0, 1]
    assert train.num_cut == sum(len(a) + len(b) > 9 for a, b in train.examples) > 0


HEADER = ("index", "sentence1", "sentence2", "label")
BAD = [
    (HEADER, (0, A, B), "train.tsv: line 3: 3 columns, expected 4"),
    (HEADER, (0, A, B, "maybe"), 'train.tsv: line 3: label="maybe": expected entailment, not_entailment'),
    (
        ("index", "sentence1", "label"),
        (0, A, "entailment"),
        'line 1: no column "sentence2" .it has index, sentence1, label',
    ),
]


@pytest.mark.parametrize("header, row, message", BAD, ids=["columns", "label", "header"])
def test_malformed_lines_are_told(tmp_path, subwords, capsys, header, row, message):
    good = (0, A, B, "entailment")[: len(header)]
    write_tsv(tmp_path / "RTE" / "train.tsv", [header, good, row, good])
    with pytest.raises(InputError, match=message) as refused:
        load("rte", tmp_path, "train", subwords)
    if len(header) == 4:
        assert str(refused.value).endswith(" (malformed lines: 1, which data.malformed=skip leaves out)")
        found = load("rte", tmp_path, "train", subwords, malformed="skip")
        told = capsys.readouterr().out.splitlines()
        assert len(found) == 2 and told[-1] == "train: malformed lines that are left out: 1, next to 2"
        assert message in told[-2]


COMMANDS = [
    ("qqp", None),
    ("qqp,bert_base,absolute", None),
    ("bert_small", "qqp_composite"),
    ("bert_base", "qqp_absolute"),
]


@pytest.mark.parametrize("variant, treatment", COMMANDS)
def test_broken_lines_of_qqp_are_counted_by_the_printed_commands(tmp_path, subwords, capsys, variant, treatment):
    """A question of the official train file has a line break, or a record lacks cells: lines of 1 to 5 columns."""
    header = ("id", "qid1", "qid2", "question1", "question2", "is_duplicate")
    broken = [(1, 3, 4, A), (B, C, 0), (2, 5, 6, A, B), ("",)]
    rows = [header, (0, 1, 2, A, B, 1), *broken, (3, 7, 8, B, f'"{C}', 0), (4, 9, 10, "", C, 0)]
    write_tsv(tmp_path / "QQP" / "train.tsv", rows)
    config = glue_config.get_config(variant)
    if treatment:
        (fields,) = (each.fields for each in glue_config.sweep(variant).treatments if each.name == treatment)
        change(config, fields)
    config.data.dir = str(tmp_path)
    found = build(config.data, "data").read("train", subwords)
    assert len(found) == 3 and found.targets.tolist() == [1, 0, 0]
    told = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[-2] for line in told[:4]] == ["line 3", "line 4", "line 5", "line 6"]
    assert told[4:] == ["train: malformed lines that are left out: 4, next to 3"]


@pytest.mark.parametrize("name", [name for name in glue.TASKS if name != "qqp"])
def test_the_recipes_of_other_tasks_refuse_broken_lines(name):
    """Their official files have none."""
    assert glue_config.get_config(name).data.malformed == "refuse"


def test_every_line_of_a_test_set_is_answered(tmp_path, subwords):
    assert not glue.Glue("rte", str(tmp_path)).has_test
    write_tsv(tmp_path / "RTE" / "test.tsv", [HEADER[:3], (0, A, B), (1, A)])
    assert glue.Glue("rte", str(tmp_path)).has_test
    with pytest.raises(InputError, match="test.tsv: line 3: 2 columns, expected 3"):
        load("rte", tmp_path, "test", subwords, malformed="skip")


def test_a_file_without_an_example(tmp_path, subwords):
    write_tsv(tmp_path / "RTE" / "dev.tsv", [HEADER])
    with pytest.raises(InputError, match="data.dir: the dev part has no lines"):
        load("rte", tmp_path, "dev", subwords)


@pytest.mark.parametrize("score", ["6", "-0.1", "nan", "x", ""])
def test_scores_are_from_0_to_5(tmp_path, subwords, score):
    write_tsv(tmp_path / "STS-B" / "train.tsv", [("sentence1", "sentence2", "score"), (A, B, score)])
    with pytest.raises(InputError, match="line 2: score=.* 0 to 5"):
        load("stsb", tmp_path, "train", subwords)


def test_what_is_not_there(tmp_path, subwords, unchecked):
    with pytest.raises(InputError, match="train.tsv is missing"):
        load("rte", tmp_path, "train", subwords)
    with pytest.raises(InputError, match='data.name="sst": .*cola, sst2'):
        load("sst", tmp_path, "train", subwords)


def test_answers_are_in_the_form_of_the_site(tmp_path):
    (path,) = glue.write_answers("rte", np.array([0.0, 1.0]), np.zeros(2, int), tmp_path)
    assert path.name == "RTE.tsv"
    assert path.read_text() == "index\tprediction\n0\tentailment\n1\tnot_entailment\n"
    (path,) = glue.write_answers("stsb", np.array([-1.0, 2.71828]), np.zeros(2, int), tmp_path)
    assert path.read_text() == "index\tprediction\n0\t0.000\n1\t2.718\n"
    paths = glue.write_answers("mnli", np.array([0.0, 2.0, 1.0]), np.array([0, 0, 1]), tmp_path)
    assert [each.name for each in paths] == ["MNLI-m.tsv", "MNLI-mm.tsv"]
    assert paths[1].read_text() == "index\tprediction\n0\tneutral\n"


class Rte(tfds.core.GeneratorBasedBuilder):
    """Pairs in the form in which tensorflow-datasets has GLUE's, stored in another order."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        text = tfds.features.Text()
        features = {"sentence1": text, "sentence2": text, "idx": np.int32}
        features["label"] = tfds.features.ClassLabel(names=["entailment", "not_entailment"])
        return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(False), "test": self._generate_examples(True)}

    def _generate_examples(self, test):
        for i in (2, 0, 1):
            yield i, {"sentence1": (A, B, C)[i], "sentence2": A, "idx": i, "label": -1 if test else i % 2}


def test_prepared_sets(tmp_path, subwords):
    Rte(data_dir=tmp_path / "glue", file_format="array_record").download_and_prepare()
    train, test = (load("rte", tmp_path, part, subwords) for part in ("train", "test"))
    assert train.targets.tolist() == [0, 1, 0] and test.targets.tolist() == [0, 0, 0]
    assert [subwords.decode(first) for first, _ in train.examples] == [
        subwords.decode(ids) for ids in subwords.encode([A, B, C])
    ]
