"""The wheel: what it has, and that it trains outside the checkout; `launch/package.sh`: in a fresh environment."""

import subprocess
import sys
import zipfile

import pytest
from absl import flags
from ml_collections import config_flags

from posattn_jax.system import command_line
from posattn_jax.system.errors import InputError
from tests.support.command import ROOT, environment, run_forked


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Made from the sdist, so that this has everything too."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--outdir", folder, ROOT]
    subprocess.run(build, check=True, capture_output=True, cwd=folder)
    (path,) = folder.glob("*.whl")
    return path


def run(*command, cwd):
    installed = environment() | {"PYTHONPATH": str(cwd / "installed")}
    return subprocess.run(command, cwd=cwd, env=installed, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_wheel_has_configs_types_and_metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read("posattn_jax-0.2.0.dist-info/METADATA").decode()
    assert {
        f"posattn_jax/packaged/configs/{path.relative_to(ROOT / 'configs')}"
        for path in (ROOT / "configs").rglob("*.py")
    } <= names
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "posattn_jax").rglob("*.py")}
    assert modules | {"posattn_jax/py.typed"} <= names
    assert {name.split("/")[0] for name in names} == {"posattn_jax", "posattn_jax-0.2.0.dist-info"}
    assert "posattn_jax-0.2.0.dist-info/licenses/LICENSE" in names
    for line in ("License-Expression: Apache-2.0", "Requires-Python: >=3.11", "Provides-Extra: wandb", "# posattn_jax"):
        assert f"\n{line}\n" in metadata


@pytest.mark.slow
def test_installed_package_trains_and_sweeps_outside_the_checkout(wheel, tmp_path):
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", tmp_path / "installed", wheel]
    subprocess.run(pip, check=True, capture_output=True)
    where = run(sys.executable, "-c", "import posattn_jax; print(posattn_jax.__file__)", cwd=tmp_path).stdout
    assert where.startswith(str(tmp_path))
    result = run("installed/bin/posattn", "--config=configs/digits.py:tiny", "--workdir=run", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "best validation accuracy" in result.stdout and (tmp_path / "run" / "summary.json").exists()

    sweep = [sys.executable, "-m", "posattn_jax.main", "--mode=sweep", "--config=configs/digits.py:tiny"]
    result = run(*sweep, "--workdir=sweep", "--treatments=span_2d", "--seeds=1", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "sweep" / "span_2d" / "1" / "summary.json").exists()


def test_a_config_of_ones_own_imports_ours_and_what_lies_beside_it(tmp_path):
    folder = tmp_path / "configs"
    folder.mkdir()
    (folder / "mine.py").write_text("WIDTH = 12\n")
    own = "from configs import digits, mine\n\n\ndef get_config():\n    config = digits.get_config()\n"
    (folder / "new.py").write_text(own + "    config.model.width = mine.WIDTH\n    return config\n")
    code, _, err = run_forked("--config.model.widht=3", config=folder / "new.py")
    assert code == 2 and "did you mean --config.model.width" in err, "which is told once the file has been read"


def test_a_config_that_comes_with_the_package(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    values = flags.FlagValues()
    config_flags.DEFINE_config_file("config", None, flag_values=values, sys_argv=[])
    with pytest.raises(InputError, match="configs/digit.py:tiny: .*configs/digits.py"):
        command_line.parse_with_config(values, ["", "--config=configs/digit.py:tiny"])
    command_line.parse_with_config(values, ["", "--config=configs/digits.py:tiny"])
    assert values["config"].value.model.width == 8
