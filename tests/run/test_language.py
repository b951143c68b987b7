"""From text to masked language modelling, from there to a task of GLUE, and to its answers; on eight devices."""

import dataclasses
import json
import zipfile

import jax
import numpy as np
import pytest

from configs import bert, glue
from configs.lib import common
from configs.lib.common import ATTENTION
from posattn_jax.config import experiment
from posattn_jax.config.parts import change, part
from posattn_jax.config.start import beginning
from posattn_jax.data.pipeline import checksums
from posattn_jax.data.text.corpus import SentencePairs
from posattn_jax.data.text.glue import TASKS
from posattn_jax.data.tokenizers import tokenizer
from posattn_jax.nn.values import DepthwiseConvolution, PlusDepthwise
from posattn_jax.run.evaluate import evaluate
from posattn_jax.run.folder import check_config
from posattn_jax.run.train import train
from posattn_jax.sweeps import glue_bundle
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import read_metrics, write_json
from posattn_jax.train.checkpoint import Checkpoints
from posattn_jax.train.program import Program
from tests.drills.damages import flip_a_bit
from tests.support.made_text import sentences, write_mnli, write_rte, write_text, write_tsv
from tests.support.recorded import figures_of


class Killed(Exception):
    pass


def text_config(files, **data):
    config = bert.get_config("tiny,test")
    config.data.update({"dir": str(files / "text")} | data)
    config.cache_dir = str(files / "cache")
    config.train.update(batch_size=8, total_steps=4, checkpoint_steps=1)
    return config


def glue_config(files, name, pretrained):
    config = glue.get_config("tiny")
    config.data.update(name=name, dir=str(files))
    config.task.pretrained = str(pretrained)
    config.train.update(batch_size=8)
    return config


def read(path):
    return json.loads(path.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("further", [False, True], ids=["rte", "mnli"])
def test_from_text_to_answers(tmp_path, monkeypatch, capsys, further):
    """One story, for what comes later starts from what was trained before; further, from RTE to MNLI."""
    write_mnli(write_rte(tmp_path))
    write_text(tmp_path / "text")
    bert = tmp_path / "bert" / "1"
    pretrain(tmp_path, bert)
    is_killed_and_restarted(tmp_path, bert, monkeypatch)
    meets_other_texts(tmp_path, bert, capsys)
    config, rte = rte_from(tmp_path, bert)
    starts_with_the_encoder(config, bert)
    answers(config, rte)
    if further:
        starts_from_another_task(tmp_path, rte)
        bundled(tmp_path / "glue", rte, monkeypatch)
    refuses_what_is_no_start(tmp_path, bert)


def pretrain(files, bert):
    train(text_config(files), bert)
    summary = read(bert / "summary.json")
    assert set(summary["final"]) == {"step", "epoch", "loss", "accuracy", "perplexity"}
    assert summary["final"]["perplexity"] == pytest.approx(np.exp(summary["final"]["loss"]))
    assert summary["tokenizer_sha256"] == tokenizer.of_run(bert).sha256
    assert summary["data_sha256"] == checksums.of_run(bert) is not None
    names = {row["name"] for row in read_metrics(bert / "metrics.jsonl") if row["split"] == "speed"}
    assert "sequences_per_second" in names
    with np.load(bert / "positions.npz") as positions:
        shapes = {name: array.shape for name, array in positions.items()}
    assert shapes == {"block_0/relative_encoding": (23, 2, 4), "block_0/relative_bias": (23, 2)}
    assert (bert / "figures" / "fixed_kernels.png").exists()


@pytest.mark.slow
def test_pretraining_on_packed_rows(tmp_path, monkeypatch):
    """Which is judged by pairs that have a row each."""
    write_text(tmp_path / "text")
    packed, bert = {"packed": True, "length": 60}, tmp_path / "bert"
    config = text_config(tmp_path, **packed)
    train(config, bert)
    is_killed_and_restarted(tmp_path, bert, monkeypatch, **packed)
    evaluate(config, bert)
    assert read(bert / "evaluation.json")["validation"]["perplexity"] > 1


def is_killed_and_restarted(files, bert, monkeypatch, **data):
    """And ends bit for bit the same."""
    update, done, killed = Program.update, [], files / "killed"

    def update_or_die(program, *arguments):
        if len(done) == 3:
            raise Killed
        done.append(program)
        return update(program, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Program, "update", update_or_die)
        with pytest.raises(Killed):
            train(text_config(files, **data), killed)
    assert not (killed / "summary.json").exists()
    train(text_config(files, **data), killed)
    assert figures_of(killed) == figures_of(bert)


def meets_other_texts(files, bert, capsys):
    """One that has moved is the same, one that has changed is refused; an evaluation takes the run's tokenizer."""
    before, config = [(bert / name).read_bytes() for name in ("metrics.jsonl", "config.json")], text_config(files)
    config.data.dir = str(write_text(files / "moved"))
    check_config(config, bert)
    (files / "moved" / "c.txt").write_text("\n".join(sentences(9, 50)))
    with pytest.raises(InputError, match=r"SHA-256 .*text has changed"):
        train(config, bert)
    assert [(bert / name).read_bytes() for name in ("metrics.jsonl", "config.json")] == before
    damaged = files / "damaged"
    flip_a_bit(write_text(damaged) / "b.txt")
    with pytest.raises(InputError, match=f"{damaged}/b.txt has changed.*{bert}"):
        train(text_config(files, dir=str(damaged)), bert)
    capsys.readouterr()
    evaluate(config, bert)
    assert "training a tokenizer" not in capsys.readouterr().err
    assert read(bert / "evaluation.json")["validation"]["perplexity"] > 1


def rte_from(files, bert):
    """Fine-tuned from the run whose folder has the seed's name."""
    config, rte = glue_config(files, "rte", files / "bert" / "{seed}"), files / "glue" / "rte_composite" / "1"
    config.seed = 1
    train(config, rte)
    summary = read(rte / "summary.json")
    assert summary["always_the_same"] == {"score": 0.5, "accuracy": 0.5}
    assert summary["tokenizer_sha256"] == tokenizer.of_run(bert).sha256
    assert 0 <= summary["final"]["score"] <= 1
    return config, rte


def starts_with_the_encoder(config, bert):
    """Of the run, and with a head of its own."""
    source = experiment.load_sources(config)["train"]
    task = experiment.make_task(config, source)
    fresh = jax.jit(task.init)(jax.random.key(0))
    start = beginning(config, task, source)
    assert start is not None
    begun, kept = start(fresh), Checkpoints(bert, read_only=True).read_params(4)
    jax.tree.map(np.testing.assert_array_equal, begun["encoder"], kept["encoder"])
    np.testing.assert_array_equal(begun["head"]["kernel"], fresh["head"]["kernel"])


def answers(config, rte):
    """21, which eight devices do not divide: what the model tells of each; also where its start is no longer there."""
    config = config.copy_and_resolve_references()
    config.task.pretrained = "moved"
    evaluate(config, rte)
    evaluation, summary = read(rte / "evaluation.json"), read(rte / "summary.json")
    assert evaluation["validation"]["score"] == pytest.approx(summary["best"]["score"])
    sources = experiment.load_sources(config, test=True, workdir=rte)
    task = experiment.make_task(config, sources["train"])
    params = Checkpoints(rte, read_only=True).read_params(summary["best"]["step"])
    told = jax.jit(task.predict)(params, sources["unlabelled"].batch(np.arange(21)))
    labels = ("entailment", "not_entailment")
    expected = ["index\tprediction", *(f"{i}\t{labels[int(each)]}" for i, each in enumerate(told))]
    assert (rte / "answers" / "RTE.tsv").read_text().splitlines() == expected


def starts_from_another_task(files, rte):
    """One with two development sets, two test sets and a diagnostic one."""
    config, mnli = glue_config(files, "mnli", rte), files / "glue" / "mnli_composite" / "9188"
    asked = [("index", "sentence1", "sentence2"), *((i, *pair) for i, pair in enumerate([sentences(3, 2)] * 7))]
    write_tsv(files / "diagnostic" / "diagnostic.tsv", asked)
    train(config, mnli)
    summary = read(mnli / "summary.json")
    for found in (summary["final"], summary["always_the_same"]):
        assert {"score", "score_mismatched"} <= set(found)
    evaluate(config, mnli)
    lines = {path.name: len(path.read_text().splitlines()) for path in (mnli / "answers").iterdir()}
    assert lines == {"MNLI-m.tsv": 25, "MNLI-mm.tsv": 6, "AX.tsv": 8}


def bundled(folder, rte, monkeypatch):
    """For a site that asks as much as these sets do."""
    for name, sizes in (("rte", (21,)), ("mnli", (24, 5, 7))):
        monkeypatch.setitem(TASKS, name, dataclasses.replace(TASKS[name], num_asked=sizes))
    expected = {path.name: path.read_text() for path in folder.glob("*/*/answers/*.tsv")}
    assert len(expected) == 4
    glue_bundle.bundle(folder, "composite", folder / "composite.zip")
    with zipfile.ZipFile(folder / "composite.zip") as archive:
        found = {name: archive.read(name).decode() for name in archive.namelist()}
    assert len(found) == 11 and {name: found[name] for name in expected} == expected


def refuses_what_is_no_start(files, bert):
    """A run with another tokenizer, and one without a checkpoint; nothing is left behind."""
    copy = files / "copy"
    copy.mkdir()
    for name in ("config.json", "tokenizer.sha256", "tokenizer.model"):
        (copy / name).write_bytes((bert / name).read_bytes())
    with pytest.raises(InputError, match="no checkpoint of a finished epoch"):
        train(glue_config(files, "rte", copy), files / "run")
    tokenizer.train(sentences(1, 300), 50).save(copy / "tokenizer.model")
    with pytest.raises(InputError, match="not the tokenizer of this run.*SHA-256"):
        train(glue_config(files, "rte", copy), files / "run")
    assert not (files / "run").exists()


@pytest.fixture
def files(tmp_path):
    write_rte(tmp_path)
    write_text(tmp_path / "text")
    return tmp_path


@pytest.fixture
def untrained(files):
    """What a run's folder has before its first update."""
    config = text_config(files)
    write_json(files / "bert" / "config.json", config.to_dict())
    tokenizer.save(experiment.load_sources(config)["train"].tokenizer, files / "bert")
    return files / "bert"


def test_validation_from_files_of_its_own(files, capsys):
    write_text(files / "held_out", number=40)
    config = text_config(files, validation_dir=str(files / "held_out"), length=9)
    sources = experiment.load_sources(config)
    assert len(sources["validation"]) == 40 and len(sources["train"]) == 300
    assert "of 300 pairs of lines are cut to data.length=9" in capsys.readouterr().out


def test_packed_rows_are_told(files, capsys):
    """In training alone; a run keeps the tokenizer."""
    config = text_config(files, packed=True, length=60)
    sources = experiment.load_sources(config)
    packed, alone = sources["train"], sources["train"].source
    tokens = alone.sizes["segment_ids"].sum()
    padding = [f"{1 - tokens / (60 * rows):.1%}" for rows in (len(packed), len(alone))]
    told = f"train: 285 pairs of lines in {len(packed)} rows, {padding[0]} padding ({padding[1]} without data.packed)\n"
    assert told in capsys.readouterr().out and len(packed) < len(alone) == 285
    assert isinstance(sources["validation"], SentencePairs)
    packed.save(files)
    assert tokenizer.of_run(files).sha256 == alone.tokenizer.sha256


DEPTHWISE = part(PlusDepthwise, convolution=part(DepthwiseConvolution, kernel_shape=(3,)))


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"task.pretrained": ""}, "task.pretrained is empty"),
        ({"task.pretrained": "nowhere"}, "task.pretrained=nowhere: no run there"),
        ({"data.name": "digits"}, 'data.name="digits": .*GLUE'),
        ({"data.name": "cola"}, "train.tsv is missing"),
        ({"data.malformed": "drop"}, 'data.malformed="drop"'),
        ({"task.span_penalty": 0.1}, "task.span_penalty=0.1: .*learned span"),
        ({"data.length": 4}, "data.length=4"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_bad_input(files, untrained, unchecked, fields, message):
    config = glue_config(files, "rte", untrained)
    with pytest.raises(InputError, match=message):
        change(config, fields)
        train(config, files / "run")
    assert not (files / "run").exists(), "nothing is left behind"


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"data.vocabulary_size": 9}, "data.vocabulary_size=9: .*at least"),
        ({"task.mask_share": 0.0}, "task.mask_share=0.0"),
        ({"task.pretrained": "runs/x"}, "task.pretrained=runs/x: no run there"),
        ({"task.start": "runs/x"}, "config.task.start=.*no such field"),
        ({"model.embedding_scale": 0.0}, "model.embedding_scale=0.0"),
        ({"model": common.classifier()}, 'model.kind="Classifier": .*Bert'),
        (
            {"data.packed": True, f"{ATTENTION}.values": DEPTHWISE},
            "data.packed=True: DepthwiseConvolution",
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_bad_input_of_pretraining(files, fields, message):
    config = text_config(files)
    with pytest.raises(InputError, match=message):
        change(config, fields)
        train(config, files / "run")
    assert not (files / "run").exists(), "nothing is left behind"
