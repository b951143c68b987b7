"""What a command has imported when it says what is wrong with its command line: libraries take seconds to import.

Seconds depend on the machine, and what was imported does not.
"""

import subprocess
import sys

import pytest

from tests.support.command import ROOT, environment
from tests.support.slow import slow

SLOW = ("jax", "flax", "optax", "grain", "orbax", "scipy", "sklearn", "matplotlib", "tensorflow_datasets")
OF_A_CONFIG = {"jax", "flax", "optax"}  # of the classes that a config names
PROGRAM = f"""
import sys
from posattn_jax import main
code = main.run(["posattn", *sys.argv[1:]])
print(code, *(name for name in {SLOW} if name in sys.modules))
"""
DIGITS = "--config=configs/digits.py:tiny --workdir=build/none"


def run(line):
    """The exit code, the slow libraries that were imported, and the output."""
    command = [sys.executable, "-c", PROGRAM, *line.split()]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *printed, last = done.stdout.splitlines()
    code, *imported = last.split()
    return int(code), set(imported), "\n".join(printed) + done.stderr


@pytest.mark.parametrize(
    "line, code, told",
    [
        ("--version", 0, "posattn_jax"),
        ("--mode=sweep --help", 0, "--treatments"),
        ("--mode=trian", 2, "flag --mode=trian: "),
        (f"{DIGITS} --epochs=2", 2, "Unknown command line flag 'epochs'"),
        (f"{DIGITS} --mode=trian --config.seed=1", 2, "flag --mode=trian: "),
        (f"{DIGITS} --config.seed=1 --treatmnet=a", 2, "Did you mean: treatment"),
        (f"{DIGITS} --top=3", 2, "--top is for --mode=predict"),
        ("--config=configs/digit.py --workdir=build/none", 2, "did you mean configs/digits.py?"),
        ("--workdir=build/none", 2, "--config=FILE is missing"),
        ("--mode=predict --workdir=build/none a.png", 2, "--workdir=build/none: no run there"),
        ("--mode=evaluate --workdir=build/none --config.data.pool=2", 2, "--workdir=build/none: no run there"),
    ],
)
def test_flags_are_checked_before_a_library_is_imported(line, code, told):
    found, imported, output = run(line)
    assert found == code and told in output and not imported


@pytest.mark.parametrize(
    "line, told",
    [
        slow(f"{DIGITS} --config.train.epochs=2", "did you mean --config.train.total_epochs?"),
        slow(f"{DIGITS} --config.train.batch_size=few", "--config.train.batch_size"),
        slow("--config=configs/digits.py:tini --workdir=build/none", 'digits variant "tini"'),
        slow(f"{DIGITS} --config.train.total_epochs=3", "total_epochs=3.0: has no effect with train.total_steps=2"),
        (f"{DIGITS} --mode=sweep --treatments=siren_2d,span2d", "--treatments=span2d: "),
        (f"{DIGITS} --treatment=span2d", "--treatment=span2d: "),
        slow(f"{DIGITS} --seeds=1,b", "--seeds=1,b"),
    ],
)
def test_a_config_is_checked_before_the_libraries_of_a_run_are_imported(line, told):
    found, imported, output = run(line)
    assert found == 2 and told in output and imported <= OF_A_CONFIG


def test_the_package_alone_imports_nothing_and_knows_its_public_names():
    program = (
        "import sys, posattn_jax\n"
        "assert 'jax' not in sys.modules and not hasattr(posattn_jax, 'Contents')\n"
        "from posattn_jax import *\n"
        "assert Content is posattn_jax.Content is posattn_jax.nn.terms.Content\n"
        "assert {*posattn_jax.__all__} <= {*dir(posattn_jax)} and posattn_jax.nnx.Content is not Content\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
