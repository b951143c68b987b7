"""What a command that is refused leaves of the run in its folder."""

import json

import pytest

from configs import digits
from posattn_jax.config import experiment
from posattn_jax.run import train as module
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import write_json


@pytest.fixture
def config(monkeypatch):
    """Of a run whose folder is refused as soon as its checkpoints are looked for."""

    def refused(*_):
        raise InputError("refused")

    monkeypatch.setattr(module, "Program", lambda *_: None)
    monkeypatch.setattr(module, "Trainer", refused)
    monkeypatch.setattr(experiment, "keep_programs", lambda cache: None)
    return digits.get_config("tiny")


def test_the_config_stays_that_of_what_was_trained(config, tmp_path):
    write_json(tmp_path / "config.json", config.to_dict())
    config.train.total_steps -= 1
    with pytest.raises(InputError, match="^refused$"):
        module.train(config, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["train"]["total_steps"] == 2


def test_a_run_that_another_process_trained_meanwhile(config, tmp_path, monkeypatch):
    load = experiment.load_sources

    def load_slowly(config, workdir):
        other = config.copy_and_resolve_references()
        other.optimizer.learning_rate = 0.5
        write_json(workdir / "config.json", other.to_dict())
        return load(config, workdir=workdir)

    monkeypatch.setattr(experiment, "load_sources", load_slowly)
    with pytest.raises(InputError, match="another config: optimizer.learning_rate was 0.5 and is now 0.001"):
        module.train(config, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["optimizer"]["learning_rate"] == 0.5
