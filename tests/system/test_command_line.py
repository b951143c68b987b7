import errno
import os

import pytest
from absl import flags
from ml_collections import config_flags

from configs import cifar2d_span
from posattn_jax.system import command_line
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import value_at
from tests.support.command import ROOT


def test_an_error_of_the_system_is_told_in_a_line(capsys):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")  # writing names no file

    assert command_line.run(full, []) == 1
    assert capsys.readouterr().err == "posattn_jax: error: No space left on device\n"


@pytest.mark.parametrize("is_of_stdout, code", [(True, 141), (False, 1)])
def test_a_reader_that_has_left_is_no_error(monkeypatch, capsys, is_of_stdout, code):
    """Such as head; though a pipe to another process is one."""
    reader, writer = os.pipe()
    monkeypatch.setattr("sys.stdout", os.fdopen(writer, "w"))
    if is_of_stdout:
        os.close(reader)

    def broken(_):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    assert command_line.run(broken, []) == code
    assert capsys.readouterr().err == ("" if is_of_stdout else "posattn_jax: error: Broken pipe\n")


def test_configs_of_earlier_versions_are_told_their_present_names(capsys):
    assert command_line.with_present_names(["", "--config=configs/cifar1d_siren.py:quick", "--mode=train"]) == [
        "",
        "--config=configs/cifar2d_span.py:quick",
        "--treatment=siren_1d",
        "--mode=train",
    ]
    told = (
        "--config=configs/cifar1d_siren.py:quick is now --config=configs/cifar2d_span.py:quick --treatment=siren_1d\n"
    )
    assert capsys.readouterr().err == told
    plan = cifar2d_span.sweep()
    named = {option[0].removeprefix("--treatment=") for _, *option in command_line.EARLIER.values() if option}
    assert named == {each.name for each in plan.treatments} - {"span_2d"}


@pytest.mark.parametrize(
    "earlier, present",
    [
        ("bert_tiny.py", "bert.py:tiny"),
        ("bert_tiny.py:tables", "bert.py:tiny,tables"),
        ("bert_tiny.py:from=runs/a,b:c", "bert.py:tiny,from=runs/a,b:c"),
        ("bert_small.py:tiny", "bert.py:small,test"),
        ("translution_mnist.py:quick", "translution.py:mnist,quick"),
        ("nmt_multi30k.py:long,gates", "nmt.py:multi30k,long,gates"),
        ("wmt14_en_de.py:rposnet,big", "nmt.py:wmt14_en_de,rposnet,big"),
    ],
)
def test_files_of_earlier_versions_are_variants(capsys, earlier, present):
    given, now = f"--config=configs/{earlier}", f"--config=configs/{present}"
    assert command_line.with_present_names([given]) == [now]
    assert capsys.readouterr().err == f"{given} is now {now}\n"


# What each file said of its training: the data, the learning rate, and the updates or epochs.
SAID = {
    "bert_tiny": {"data.length": 40, "optimizer.learning_rate": 1e-3, "train.total_steps": 2000},
    "bert_small": {"data.validation_limit": 10_000, "optimizer.learning_rate": 3e-4, "train.total_steps": 125_000},
    "bert_base": {"data.validation_limit": 10_000, "optimizer.learning_rate": 1e-4, "train.total_steps": 1_000_000},
    "iwslt14": {"data.dir": "data/iwslt14", "data.source": "de", "train.total_steps": 30_000},
    "wmt14_en_de": {"data.dir": "data/wmt14_en_de", "data.target": "de", "train.total_steps": 150_000},
    "wmt14_en_fr": {"data.dir": "data/wmt14_en_fr", "data.target": "fr", "train.total_steps": 150_000},
    "wmt18_en_zh": {"data.dir": "data/wmt18_en_zh", "data.target": "zh", "train.total_steps": 150_000},
    "nmt_multi30k": {"data.dir": "data/multi30k", "data.batch_unit": "places", "train.total_epochs": 10},
    "translution_mnist": {"data.name": "mnist", "model.patch_shape": (7, 7), "train.total_epochs": 30},
    "translution_moving_mnist": {"data.name": "mnist", "model.patch_shape": (8, 8), "train.total_epochs": 30},
    "translution_cifar10": {"data.name": "cifar10", "model.patch_shape": (8, 8), "train.total_epochs": 30},
    "translution_cifar100": {"data.name": "cifar100", "model.patch_shape": (8, 8), "train.total_epochs": 30},
    "translution_points": {"data.name": "mnist", "model.patch_shape": (1,), "train.total_epochs": 30},
    "translution_imagenet": {"data.name": "imagenet64", "model.patch_shape": (4, 4), "train.total_epochs": 300},
}


def test_a_file_of_an_earlier_version_is_read_as_its_variant(capsys):
    assert set(SAID) == {file for file, (_, *option) in command_line.EARLIER.items() if not option and ":" not in file}
    for file, said in SAID.items():
        config = command_line.load_config(f"configs/{file}.py").to_dict()
        assert {path: value_at(config, path) for path in said} == said
        assert command_line.load_config(f"configs/{file}.py:tiny").train.total_steps == 2
        assert f"--config=configs/{file}.py:tiny is now --config=configs/" in capsys.readouterr().err


def test_a_file_that_is_a_treatment_now_is_no_config_alone():
    with pytest.raises(InputError, match=r"cifar1d_siren.py: .*cifar2d_span.py .*--treatment=siren_1d"):
        command_line.load_config("configs/cifar1d_siren.py")


def test_a_value_of_earlier_versions(capsys):
    assert command_line.with_present_names(["", "--data=made"]) == ["", "--data=random"]
    assert capsys.readouterr().err == "--data=made is now --data=random\n"


@pytest.mark.parametrize("path", sorted((ROOT / "configs/studies").glob("*.py")), ids=lambda path: path.stem)
def test_studies_are_found_by_their_earlier_paths(path, capsys):
    given = f"--config=configs/{path.name}:tiny"
    assert command_line.with_present_names([given]) == [f"--config=configs/studies/{path.name}:tiny"]
    assert capsys.readouterr().err


@pytest.mark.parametrize("given", ["--config=configs/digits.py:tiny", "--config=configs/no.py", "--config.seed=1"])
def test_other_arguments_stay(given, capsys):
    assert command_line.with_present_names([given]) == [given]
    assert not capsys.readouterr().err


def test_a_field_that_is_given_twice_has_its_last_value():
    """Of a tuple too, where ml_collections would join both."""
    argv = ["main", "--config=configs/image_folder.py:tiny", "--config.data.mean=(.1,.2,.3)", "--config.data.mean=.4,"]
    values = flags.FlagValues()
    config_flags.DEFINE_config_file("config", None, "", flag_values=values, sys_argv=argv)
    command_line.parse_with_config(values, argv)
    assert values["config"].value.data.mean == (0.4,)
