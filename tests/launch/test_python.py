"""Which Python the launchers take, and what `versions.sh` installs and runs on each, with Pythons that only pretend."""

import re
import shlex
import shutil
import subprocess
import sys

import pytest

from tests.support.command import ROOT
from tests.support.packaging import metadata

# Of the system, which the scripts call.
PROGRAMS = ("bash", "cat", "dirname", "grep", "mkdir", "paste", "rm", "rmdir", "sleep", "tee", "touch")

# Code runs as if in Python VERSION; an environment has a Python that does likewise.
PYTHON = """#!/bin/bash
echo "$0 $*" >> {calls}
case $1 in
    -c) exec {real} -c "import sys; sys.version_info = {version}; exec(sys.argv[1])" "$2" ;;
    --version) echo Python {shown} ;;
esac
case "$2 $3" in
    "venv "*) folder=${{!#}} && mkdir -p $folder/bin && cat $0 > $folder/bin/python && chmod +x $folder/bin/python ;;
    'pip freeze') echo jax==0.{shown} ;;
    'pytest '*) exit {exit_code} ;;
esac
"""


class Machine:
    """A copy of the launchers, and a PATH with nothing but what a test puts there."""

    def __init__(self, folder):
        self.folder, self.path, self.calls = folder, folder / "bin", folder / "calls"
        self.path.mkdir()
        for name in (*PROGRAMS, "chmod"):
            program = shutil.which(name)
            assert program, name
            (self.path / name).symlink_to(program)
        shutil.copytree(ROOT / "launch", folder / "launch")
        shutil.copy(ROOT / "setup.py", folder)
        self.calls.touch()

    def add(self, name, text):
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def add_python(self, name, version, exit_code=0):
        shown = ".".join(map(str, version))
        names = {"real": shlex.quote(sys.executable), "calls": self.calls, "exit_code": exit_code}
        return self.add(name, PYTHON.format(version=version, shown=shown, **names))

    def run(self, command, **environment):
        environment = {"PATH": str(self.path), **environment}
        return subprocess.run(
            ["bash", "-c", command], cwd=self.folder, env=environment, capture_output=True, text=True, timeout=60
        )

    def called(self, what):
        return [line for line in self.calls.read_text().splitlines() if what in line]


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


SETUP = "set -euo pipefail; source launch/setup.sh train"


def test_the_launchers_know_the_versions_that_are_promised():
    text = (ROOT / "launch" / "python.sh").read_text()
    known = re.search(r"^PYTHONS=\((.*?)\)", text, re.MULTILINE).group(1).split()
    promised = [each.rpartition(" ")[2] for each in metadata()["classifiers"] if ":: 3." in each]
    assert known == sorted(promised, reverse=True)


def test_a_shim_that_fails_is_passed_over(machine):
    """Pyenv has one for each version that it has, whether that is chosen or not."""
    machine.add("python3.13", "#!/bin/bash\necho 'pyenv: python3.13: command not found' >&2\nexit 127\n")
    find = 'source launch/python.sh; find_python "${PYTHONS[@]}"'
    assert machine.run(find).returncode == 1
    machine.add_python("python3.12", (3, 12, 1))
    assert machine.run(find).stdout == "python3.12\n"
    machine.add("pyenv", f"#!/bin/bash\necho {machine.folder}/pyenv\n")
    machine.add_python(machine.folder / "pyenv/versions/3.13.0/bin/python", (3, 13, 0))
    result = machine.run(find)
    assert result.stdout == f"{machine.folder}/pyenv/versions/3.13.0/bin/python\n" and not result.stderr


def test_a_python_of_another_version_than_it_is_called(machine):
    machine.add_python("python3.13", (3, 10, 2))
    assert machine.run("source launch/python.sh; find_python 3.13").returncode == 1


def test_setup_takes_the_newest_that_it_knows(machine):
    for minor in (10, 11, 13, 14):
        machine.add_python(f"python3.{minor}", (3, minor, 0))
    machine.add_python("python3", (3, 10, 0))
    result = machine.run(SETUP)
    assert result.returncode == 0, result.stderr
    assert machine.called("-m venv") == [f"{machine.path}/python3.13 -m venv .venv"]


def test_setup_takes_python3_where_it_knows_none(machine):
    machine.add_python("python3", (3, 14, 0))
    assert machine.run(SETUP).returncode == 0
    assert machine.called("-m venv") == [f"{machine.path}/python3 -m venv .venv"]


def test_setup_takes_what_it_is_told(machine):
    machine.add_python("python3.13", (3, 13, 0))
    mine = machine.add_python("mine", (3, 11, 4))
    assert machine.run(SETUP, PYTHON=str(mine)).returncode == 0
    assert machine.called("-m venv") == [f"{mine} -m venv .venv"]


def test_setup_keeps_the_environment_that_is_there(machine):
    machine.add_python("python3.13", (3, 13, 0))
    machine.add_python(machine.folder / ".venv/bin/python", (3, 11, 4))
    assert machine.run(SETUP).returncode == 0
    assert machine.called("") == machine.called(".venv/bin/python -m pip install") != []


@pytest.mark.parametrize(
    "version, python, shown",
    [((3, 10, 2), None, "python3 is Python 3.10.2"), ((3, 13, 0), "python3.9", "python3.9 is none that runs")],
    ids=["too old", "not there"],
)
def test_setup_says_in_one_line_what_it_needs(machine, version, python, shown):
    machine.add_python("python3", version)
    result = machine.run(SETUP, **({"PYTHON": python} if python else {}))
    assert result.returncode == 2
    assert result.stderr == f"posattn_jax needs Python 3.11 or newer; {shown}. Set PYTHON=/path/to/python3.13\n"


@pytest.mark.parametrize("called", [SETUP, "set -e; source launch/setup.sh train || exit; echo goes on"])
def test_setup_stops_and_leaves_no_half_of_an_environment(machine, called):
    """As on Debian without ensurepip, where a Python is linked before the rest fails."""
    machine.add_python("python3", (3, 13, 0))
    half = "mkdir -p .venv/bin && cat $0 > .venv/bin/python && chmod +x .venv/bin/python && exit 1"
    path = machine.path / "python3"
    path.write_text(path.read_text().replace('"venv "*)', f'"venv "*) {half} ;;\n    "not "*)'))
    result = machine.run(called)
    assert result.returncode == 1 and not result.stdout
    assert not (machine.folder / ".venv").exists() and not machine.called("pip install")


@pytest.mark.parametrize("called", [SETUP, "set -e; source launch/setup.sh train || exit; echo goes on"])
def test_setup_installs_again_what_failed(machine, called):
    machine.add_python("python3", (3, 13, 0))
    path = machine.path / "python3"
    path.write_text(path.read_text().replace("'pip freeze')", "'pip install') exit 1 ;;\n    'pip freeze')"))
    assert machine.run(called).returncode == 1
    assert not list((machine.folder / ".venv").glob(".installed-*"))


def test_versions_tells_what_failed_where_an_installation_does(machine):
    for minor in (11, 13):
        path = machine.add_python(f"python3.{minor}", (3, minor, 0))
        table = f"    launch/versions_table.py) exec {shlex.quote(sys.executable)} $@ ;;"
        path.write_text(path.read_text().replace("case $1 in", f"case $1 in\n{table}"))
    path = machine.path / "python3.11"
    path.write_text(path.read_text().replace('"venv "*)', '"venv "*) exit 1 ;;\n    "not "*)'))
    result = machine.run("launch/versions.sh")
    assert (result.returncode, result.stderr) == (1, "")
    *_, least, newest, told = result.stdout.splitlines()
    assert least.startswith("| least | 3.11 | - | - |") and newest.startswith("| newest | 3.13 | 0.3.13.0 | - |")
    assert told == "versions.sh: Python 3.11, least versions: FAILED. Python 3.13, newest versions: passed."


def test_versions_needs_two_pythons(machine):
    machine.add_python("python3.12", (3, 12, 0))
    result = machine.run("launch/versions.sh")
    assert result.returncode == 2
    assert result.stderr == "versions.sh: needs two of Python 3.13 3.12 3.11; found: 3.12\n"
    assert result.stdout.splitlines() == [f"Python 3.{minor}: not on this machine, skipped" for minor in (13, 11)]


def test_versions_has_one_option(machine):
    result = machine.run("launch/versions.sh --between")
    assert (result.returncode, result.stderr) == (2, "versions.sh --between: the only option is --all\n")


@pytest.mark.parametrize("option", ["", "--all"])
@pytest.mark.parametrize("exit_code", [0, 5], ids=["passed", "nothing selected"])
def test_versions_tries_the_least_on_the_oldest_and_the_newest_on_the_newest(machine, exit_code, option):
    """With --all also those that Colab has, and what is between."""
    machine.add_python("python3.11", (3, 11, 0))
    machine.add_python("python3.13", (3, 13, 0), exit_code=exit_code)
    result = machine.run(f"launch/versions.sh {option}")
    assert result.returncode == bool(exit_code), result.stderr
    outcome = "FAILED" if exit_code else "passed"
    lines = result.stdout.splitlines()
    assert lines[0] == "Python 3.12: not on this machine, skipped"
    assert {"3.11 least: jax==0.3.11.0", "3.13 newest: jax==0.3.13.0"} <= set(lines)
    between = re.findall(r"[\d.]+/[\d.]+", (ROOT / "launch" / "versions.sh").read_text())
    more = ["colab", *between] if option else []
    told = [f"Python 3.13, {versions} versions: {outcome}." for versions in ("newest", *more)]
    assert lines[-1] == " ".join(["versions.sh: Python 3.11, least versions: passed.", *told])
    ran = machine.called("-m pytest")
    environments = [
        "build/versions/3.11-least",
        *(f"build/versions/3.13-{name.replace('/', '-')}" for name in ("newest", *more)),
    ]
    notebooks = [each for each in environments if "colab" in each]
    assert sorted(line.split("/bin")[0] for line in ran) == sorted([*environments, *notebooks])
    for test in re.findall(r"tests/[\w/]+\.py", ran[0]):
        assert (ROOT / test).exists(), test

    folder = machine.folder / "build" / "versions"
    least = (folder / "3.11-least" / "constraints.txt").read_text().splitlines()
    assert all(re.fullmatch(r"[\w-]+==[\d.]+", line) for line in least) and len(least) > 20
    assert {"jax==0.7.2", "numpy==2", "grain==0.2.18", "flatbuffers==24.3.25"} <= set(least)
    assert (folder / "3.13-newest" / "constraints.txt").read_text() == ""
    if option:
        assert "jax==0.7.2" in (folder / "3.13-colab" / "constraints.txt").read_text().splitlines()
    installed = [line.partition(" -m pip install ")[2] for line in machine.called("-m pip install")]
    for environment in environments:
        own = [line for line in installed if f"--constraint {environment}/constraints.txt" in line]
        kept = ["--requirement launch/colab.txt"] if "colab" in environment else []
        given = [line.partition("constraints.txt ")[2] for line in own]
        more = ["--editable .[colab]"] if environment in notebooks else []
        assert given == [*kept, "--editable .", "--editable .[versions]", *more]
