"""Configs of run folders, also of earlier versions, whose classes have more fields by now."""

import json
import pathlib

import pytest

from configs import digits
from posattn_jax.analysis.runs.run_folders import read_runs
from posattn_jax.config.names import class_of, name_of
from posattn_jax.config.parts import part
from posattn_jax.config.saved import BEFORE, completed, settable
from posattn_jax.system.files import read_json

ADAM = "posattn_jax.train.optimizer:Adam"


def saved():
    return json.loads(json.dumps(digits.get_config("tiny").to_dict()))


def test_nothing_is_added_where_nothing_is_missing():
    assert completed(saved()) == saved()


def test_what_is_missing_has_its_default_and_what_is_there_stays():
    earlier = saved()
    attention = earlier["model"]["block"]["attention"]
    del attention["use_bias"], attention["span"]["per_head"]
    attention["span"]["threshold"] = 0.7
    found = completed(earlier)["model"]["block"]["attention"]
    assert found["use_bias"] is True and found["span"]["per_head"] is False and found["span"]["threshold"] == 0.7


@pytest.mark.parametrize(
    "kind, fields, before",
    [
        (ADAM, {"clip_norm": 1.0}, {"clips_spans": True}),
        (ADAM, {}, {}),
        ("posattn_jax.train.settings:Settings", {}, {"merged_batches": "no"}),
    ],
)
def test_what_is_missing_is_what_its_class_did_before(kind, fields, before):
    """A run that goes on does so by its own recipe; where the field changes nothing, it is as by default."""
    now = json.loads(json.dumps(part(class_of(kind, "kind"), **fields).to_dict()))
    gone = BEFORE[kind](now).keys()
    assert now["kind"] == kind and gone <= now.keys()
    assert completed({name: value for name, value in now.items() if name not in gone}) == now | before
    assert completed(now) == now


def test_a_class_that_is_no_more_stays():
    gone = {"data": {"kind": "posattn_jax.data.gone:Images", "size": 3}, "seed": 1}
    assert completed(gone) == gone


def test_a_saved_config_is_set_as_its_config_file_is():
    """Tuples, and fields that are None: their types are those of the classes."""
    config = settable(saved())
    assert json.loads(json.dumps(config.to_dict())) == saved()
    written = digits.get_config("tiny")
    for name in ("num_classes", "dtype"):
        assert config.model.get_type(name) == written.model.get_type(name)
    terms = config.model.block.attention
    assert type(terms.get("head_dim")) is type(written.model.block.attention.get("head_dim"))
    assert settable({"kind": "no.such:Thing", "size": [1, 2], "name": None}).to_dict() == {
        "kind": "no.such:Thing",
        "size": (1, 2),
        "name": None,
    }


def kinds(config, path="config"):
    """The kinds of all parts, by path."""
    for name, value in config.items():
        if isinstance(value, dict):
            yield from kinds(value, f"{path}.{name}")
        elif name == "kind":
            yield path, value


def committed():
    """The config of each run of the committed sweeps, and the one that lies alone."""
    for folder in sorted(path.parent for path in pathlib.Path("docs/results").glob("*/runs.jsonl")):
        yield from (run.config for run in read_runs(folder, completed).all)
    yield completed(read_json(pathlib.Path("benchmarks/results/nvidia_h200_training/one_epoch_config.json")))


def test_every_committed_run_names_classes_that_are_there():
    configs = list(committed())
    assert len(configs) > 100
    for path, kind in {each for config in configs for each in kinds(config)}:
        cls = class_of(kind, path)
        assert name_of(cls) == kind
