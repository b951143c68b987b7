import pytest

from configs import cifar2d_span
from posattn_jax.system import command_line
from tests.support.command import ROOT


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
    assert {plan.treatment(name).name for name in command_line.TREATMENTS.values()} == {
        each.name for each in plan.treatments
    } - {"span_2d"}


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
