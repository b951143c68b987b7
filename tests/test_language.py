"""From text to masked language modelling, from there to a task of GLUE, and to its answers; on eight devices."""

import json

import jax
import numpy as np
import optax
import pytest

from configs import bert_tiny, glue
from posattn_jax import runs
from posattn_jax.data import tokenizer
from posattn_jax.errors import InputError
from posattn_jax.files import read_metrics
from posattn_jax.train.checkpoint import Checkpoints
from posattn_jax.train.loop import Trainer
from posattn_jax.train.sharding import make_mesh
from tests.made_text import sentences, write_mnli, write_rte, write_text

pytestmark = pytest.mark.xdist_group("language")  # one process trains what they share


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    write_mnli(write_rte(folder))
    write_text(folder / "text")
    return folder


def text_config(files, **data):
    config = bert_tiny.get_config("tiny")
    config.data.update(dir=str(files / "text"), cache_dir=str(files / "cache"), **data)
    config.train.update(batch_size=8, total_steps=4, checkpoint_steps=1)
    return config


def rte_config(files, pretrained):
    config = glue.get_config("tiny")
    config.data.update(name="rte", dir=str(files))
    config.model.pretrained = str(pretrained)
    config.train.update(batch_size=8)
    return config


@pytest.fixture(scope="module")
def trained(files):
    runs.train(text_config(files), files / "runs" / "1")
    return files / "runs" / "1"


@pytest.fixture(scope="module")
def tuned(files, trained):
    """Fine-tuned from the run whose folder has the seed's name."""
    config = rte_config(files, files / "runs" / "{seed}")
    config.seed = 1
    runs.train(config, files / "rte")
    return config, files / "rte"


def test_pretraining(trained):
    summary = json.loads((trained / "summary.json").read_text())
    assert set(summary["final"]) == {"step", "epoch", "loss", "accuracy", "perplexity"}
    assert summary["final"]["perplexity"] == pytest.approx(np.exp(summary["final"]["loss"]))
    assert summary["tokenizer_sha256"] == tokenizer.of_run(trained).sha256
    names = {row["name"] for row in read_metrics(trained / "metrics.jsonl") if row["split"] == "speed"}
    assert "sequences_per_second" in names
    with np.load(trained / "positions.npz") as positions:
        assert {name: array.shape for name, array in positions.items()} == {
            "block_0/relative_encoding": (23, 2, 4),
            "block_0/relative_bias": (23, 2),
        }


class Killed(Exception):
    pass


def test_killed_and_restarted_it_ends_bit_for_bit_the_same(files, trained, tmp_path, monkeypatch):
    update, done = Trainer._update, []

    def update_or_die(trainer):
        if len(done) == 3:
            raise Killed
        done.append(update(trainer))

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_update", update_or_die)
        with pytest.raises(Killed):
            runs.train(text_config(files), tmp_path)
    assert not (tmp_path / "summary.json").exists()
    runs.train(text_config(files), tmp_path)
    rows = [
        [row for row in read_metrics(workdir / "metrics.jsonl") if row["split"] != "speed"]
        for workdir in (trained, tmp_path)
    ]
    assert rows[0] == rows[1]


def test_a_text_that_has_changed_is_refused(files, trained, tmp_path):
    """And one that has only moved is not."""
    before, config = (trained / "metrics.jsonl").read_bytes(), text_config(files)
    config.data.dir = str(write_text(tmp_path / "text"))
    runs.check_config(config, trained)
    (tmp_path / "text" / "c.txt").write_text("\n".join(sentences(9, 50)))
    with pytest.raises(InputError, match=r"its tokenizer has the SHA-256 .* the text has changed"):
        runs.train(config, trained)
    assert (trained / "metrics.jsonl").read_bytes() == before
    assert json.loads((trained / "config.json").read_text())["data"]["dir"] == str(files / "text")


def test_validation_from_files_of_its_own(files, tmp_path, capsys):
    write_text(tmp_path / "held_out", number=40)
    config = text_config(files, validation_dir=str(tmp_path / "held_out"), length=9)
    sources = runs.experiment.load_sources(config)
    assert len(sources["validation"]) == 40 and len(sources["train"]) == 300
    assert "of 300 pairs of lines are cut to data.length=9 tokens" in capsys.readouterr().out


def test_fine_tuning(tuned, trained):
    _, workdir = tuned
    summary = json.loads((workdir / "summary.json").read_text())
    assert summary["always_the_same"] == {"score": 0.5, "accuracy": 0.5}
    assert summary["tokenizer_sha256"] == tokenizer.of_run(trained).sha256
    assert 0 <= summary["final"]["score"] <= 1


def test_it_starts_from_the_run_that_is_given(files, tuned, trained):
    """Its encoder is that of the run, and its head is not."""
    config, _ = tuned
    sources = runs.experiment.load_sources(config)
    task = runs.experiment.make_task(config, sources["train"])
    fresh = jax.jit(task.init)(jax.random.key(0))
    start = runs.experiment.pretrained(config, task)
    assert start is not None
    begun, kept = start(fresh), Checkpoints(trained, read_only=True).read_params(4)
    jax.tree.map(np.testing.assert_array_equal, begun["encoder"], kept["encoder"])
    np.testing.assert_array_equal(begun["head"]["kernel"], fresh["head"]["kernel"])
    mesh, optimizer = make_mesh(), optax.set_to_zero()
    settings = runs.experiment.make_settings(config, len(sources["train"]))
    trainer = Trainer(task, optimizer, sources["train"], sources["validation"], mesh, settings)
    trainer.open(files / "opened", start)
    jax.tree.map(np.testing.assert_array_equal, trainer.state.params["encoder"], kept["encoder"])
    trainer.close()


def test_evaluation_writes_answers(tuned):
    """21 of them, which eight devices do not divide: what the model tells of each, one after the other."""
    config, workdir = tuned
    runs.evaluate(config, workdir)
    evaluation = json.loads((workdir / "evaluation.json").read_text())
    summary = json.loads((workdir / "summary.json").read_text())
    assert evaluation["validation"]["score"] == pytest.approx(summary["best"]["score"])
    lines = (workdir / "answers" / "RTE.tsv").read_text().splitlines()
    sources = runs.experiment.load_sources(config, test=True, workdir=workdir)
    task = runs.experiment.make_task(config, sources["train"])
    params = Checkpoints(workdir, read_only=True).read_params(summary["best"]["step"])
    predict = jax.jit(task.predict)
    told = [int(predict(params, sources["unlabelled"].batch(np.array([i])))[0]) for i in range(21)]
    labels = ("entailment", "not_entailment")
    assert lines == ["index\tprediction", *(f"{i}\t{labels[each]}" for i, each in enumerate(told))]


def test_a_task_of_two_development_sets_starts_from_another_task(files, tuned, tmp_path):
    config = rte_config(files, tuned[1])
    config.data.name = "mnli"
    runs.train(config, tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    for figures in (summary["final"], summary["always_the_same"]):
        assert {"score", "score_mismatched"} <= set(figures)
    runs.evaluate(config, tmp_path)
    lines = {path.name: len(path.read_text().splitlines()) for path in (tmp_path / "answers").iterdir()}
    assert lines == {"MNLI-m.tsv": 25, "MNLI-mm.tsv": 6}


def test_a_run_is_evaluated_without_the_run_that_it_began_from(tuned):
    config, workdir = tuned
    config = config.copy_and_resolve_references()
    config.model.pretrained = "moved"
    before = (workdir / "evaluation.json").read_text() if (workdir / "evaluation.json").exists() else None
    runs.evaluate(config, workdir)
    again = json.loads((workdir / "evaluation.json").read_text())
    assert before is None or again["validation"] == json.loads(before)["validation"]


def test_another_text_is_evaluated_with_the_tokenizer_of_the_run(files, trained, tmp_path, capsys):
    config = text_config(files)
    config.data.dir = str(tmp_path / "text")
    (write_text(tmp_path / "text") / "c.txt").write_text("\n".join(sentences(9, 50)))
    runs.evaluate(config, trained)
    assert "training a tokenizer" not in capsys.readouterr().out
    assert json.loads((trained / "evaluation.json").read_text())["validation"]["perplexity"] > 1


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"model.pretrained": ""}, "model.pretrained is empty"),
        ({"model.pretrained": "nowhere"}, "model.pretrained=nowhere: no run there"),
        ({"model.absolute_positions": True}, "another model: model.absolute_positions is False there and True here"),
        ({"model.num_heads": 1}, "another model: model.num_heads is 2 there and 1 here"),
        ({"data.name": "digits"}, 'data.name="digits": expected one of GLUE\'s tasks'),
        ({"data.name": "cola"}, "train.tsv is missing"),
        ({"data.malformed": "drop"}, 'data.malformed="drop": expected "refuse" or "skip"'),
        ({"model.span.penalty": 0.1}, "model.span.penalty=0.1: model.span.enabled is False"),
        ({"model.linear_init": "own"}, 'model.linear_init="own": expected "normal"'),
        ({"data.length": 4}, "data.length=4: expected at least 5"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_bad_input(files, trained, tmp_path, unchecked, fields, message):
    config = rte_config(files, trained)
    config.update_from_flattened_dict(fields)
    with pytest.raises(InputError, match=message):
        runs.train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists(), "nothing is left behind"


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"data.validation": "test"}, 'data.validation="test": expected "split" with text'),
        ({"data.vocabulary_size": 5000}, "data.vocabulary_size=5000: the text allows at most"),
        ({"data.mask_share": 0.0}, "data.mask_share=0.0"),
        ({"model.pretrained": "runs/x"}, 'model.pretrained=runs/x: expected "" with task="masked_lm"'),
        ({"model.kind": "vit"}, 'model.kind="vit": expected "bert" with task="masked_lm"'),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_bad_input_of_pretraining(files, tmp_path, fields, message):
    config = text_config(files)
    config.update_from_flattened_dict(fields)
    with pytest.raises(InputError, match=message):
        runs.train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists(), "nothing is left behind"


def test_a_run_without_a_checkpoint_is_no_start(files, trained, tmp_path):
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("config.json", "tokenizer.sha256", "tokenizer.model"):
        (copy / name).write_bytes((trained / name).read_bytes())
    with pytest.raises(InputError, match="the run has no checkpoint of a finished epoch"):
        runs.train(rte_config(files, copy), tmp_path / "run")
    assert not (tmp_path / "run").exists(), "nothing is left behind"


def test_another_tokenizer_is_refused(files, trained, tmp_path):
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("config.json", "tokenizer.sha256"):
        (copy / name).write_bytes((trained / name).read_bytes())
    tokenizer.train(sentences(1, 300), 50).save(copy / "tokenizer.model")
    with pytest.raises(InputError, match="is not the tokenizer of this run, whose SHA-256 is"):
        runs.train(rte_config(files, copy), tmp_path / "run")
