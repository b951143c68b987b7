"""Runs of tagging: trained by command without data and on files, and asked about sentences."""

import io
import json

import pytest

from configs import tagging
from posattn_jax.run.evaluate import evaluate
from posattn_jax.run.train import train
from posattn_jax.use.explain import explain
from posattn_jax.use.predict import predict
from tests.support.command import run_forked, told
from tests.support.made_text import write_columns


@pytest.mark.slow
def test_from_the_command_to_tags(tmp_path, capsys):
    workdir = tmp_path / "run"
    fields = [f"--workdir={workdir}", f"--config.cache_dir={tmp_path / 'cache'}"]
    code, _, err = run_forked(*fields, config="configs/tagging.py:tiny")
    assert code == 0, err
    final = json.loads((workdir / "summary.json").read_text())["final"]
    assert {"step", "epoch", "loss", "accuracy", "accuracy_DET", "accuracy_V-SG"} < set(final) and "f1" not in final
    output, asked = io.StringIO(), ["these light plans welcome a charge .", "\t", "this"]
    assert predict(workdir, [], [f"{line}\n".encode() for line in asked], output) == 2
    assert told(capsys.readouterr().err) == ["posattn_jax: error: input: line 2: expected 1 sentence"]
    answers = list(map(json.loads, output.getvalue().splitlines()))
    assert [answer["line"] for answer in answers] == [1, 3]
    assert len(answers[1]["tags"]) == 1 and set(answers[0]["tags"]) <= {each[9:] for each in final if "_" in each}
    assert explain(workdir, [], [b"this light plans"], [], []) == 0
    assert "The model predicts: " in (workdir / "attention.html").read_text()


@pytest.mark.slow
def test_chunks_of_files_are_learned(tmp_path):
    """The chunk of a word follows from the word."""
    write_columns(tmp_path / "data" / "train.txt", 300)
    write_columns(tmp_path / "data" / "test.txt", 20, seed=1)
    config = tagging.get_config("tiny,files")
    config.data.dir, config.cache_dir = str(tmp_path / "data"), str(tmp_path / "cache")
    config.train.update(total_steps=150, batch_size=16)
    config.optimizer.learning_rate = 1e-2
    config.optimizer.schedule.warmup_steps = 10
    train(config, tmp_path / "run")
    evaluate(config, tmp_path / "run")
    test = json.loads((tmp_path / "run" / "evaluation.json").read_text())["test"]
    assert test["accuracy"] > 0.95 and test["f1"] > 0.9
