"""Runs of word order: trained by command, killed and gone on with, and asked about sentences."""

import io
import json

import pytest

from configs import word_order
from posattn_jax.run.train import train
from posattn_jax.train.program import Program
from posattn_jax.use.predict import predict
from tests.support.command import run_forked, told
from tests.support.made_text import sentences, write_text
from tests.support.recorded import figures_of


class Killed(Exception):
    pass


@pytest.mark.slow
def test_from_the_command_to_answers(tmp_path, capsys):
    workdir = tmp_path / "run"
    fields = [f"--config.data.dir={write_text(tmp_path / 'text')}", f"--config.cache_dir={tmp_path / 'cache'}"]
    code, _, err = run_forked(f"--workdir={workdir}", *fields, config="configs/word_order.py:tiny")
    assert code == 0, err
    final = json.loads((workdir / "summary.json").read_text())["final"]
    accuracies = [f"accuracy_{name}" for name in ("as_written", "swapped", "shuffled")]
    assert set(final) == {"step", "epoch", "loss", "accuracy", *accuracies}
    assert sum(final[name] for name in accuracies) / 3 == pytest.approx(final["accuracy"])
    output, asked = io.StringIO(), [*sentences(5, 2), "\t"]
    assert predict(workdir, [], [f"{line}\n".encode() for line in asked], output) == 2
    assert told(capsys.readouterr().err) == ["posattn_jax: error: input: line 3: expected 1 sentence"]
    answers = list(map(json.loads, output.getvalue().splitlines()))
    assert [answer["line"] for answer in answers] == [1, 2]
    assert {answer["name"] for answer in answers} <= {"as written", "swapped", "shuffled"}


@pytest.mark.slow
def test_a_killed_run_ends_as_if_undisturbed(tmp_path, monkeypatch):
    config = word_order.get_config("tiny")
    config.data.dir, config.cache_dir = str(write_text(tmp_path / "text")), str(tmp_path / "cache")
    config.train.update(batch_size=8, total_steps=4, checkpoint_steps=1)
    train(config, tmp_path / "run")
    update, done, killed = Program.update, [], tmp_path / "killed"

    def update_or_die(program, *arguments):
        if len(done) == 3:
            raise Killed
        done.append(program)
        return update(program, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Program, "update", update_or_die)
        with pytest.raises(Killed):
            train(config, killed)
    assert not (killed / "summary.json").exists()
    train(config, killed)
    assert figures_of(killed) == figures_of(tmp_path / "run")
