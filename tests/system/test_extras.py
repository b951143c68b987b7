"""What is told where a library of an extra is missing: in one line, which extra has it."""

import ast
import re
import subprocess
import sys
from importlib import metadata

import pytest

from configs import digits, translation
from posattn_jax.system import extras
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import write_json
from tests.project.test_constraints import normal
from tests.support.command import ROOT, environment
from tests.support.packaging import requirements

NOT_INSTALLED = {"wandb": "wandb"}  # library -> distribution
NO_EXTRA = {"torch"}  # which alone reads .pt files: the error there says so itself


def imported():
    """The libraries that the package imports, wherever."""
    for path in [*ROOT.glob("posattn_jax/**/*.py"), *ROOT.glob("configs/*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and not node.level:
                yield str(node.module).partition(".")[0]
            elif isinstance(node, ast.Import):
                yield from (each.name.partition(".")[0] for each in node.names)


def test_every_library_is_of_the_core_or_of_the_extra_that_is_told():
    distributions = metadata.packages_distributions() | {name: [of] for name, of in NOT_INSTALLED.items()}
    has = {extra: {normal(each.name) for each in of} for extra, of in requirements().items()}
    told = {library: extra for extra, names in extras.LIBRARIES.items() for library in names}
    libraries = set(imported()) - set(sys.stdlib_module_names) - {"posattn_jax", "configs", "load"} - NO_EXTRA
    assert told.keys() - libraries == {"flatbuffers", "importlib_resources", "wandb"}, "which others import"
    for library in libraries | told.keys():
        assert {normal(name) for name in distributions[library]} & has[told.get(library, "")], library


@pytest.mark.parametrize("library", ["orbax.checkpoint", "tensorflow_datasets", "sacrebleu.metrics", "flatbuffers"])
def test_the_error_names_the_extra(library):
    extra = next(extra for extra, names in extras.LIBRARIES.items() if library.partition(".")[0] in names)
    message = rf"{library.partition('.')[0]} is missing: pip install posattn_jax\[{extra}\]"
    with pytest.raises(InputError, match=f"^{message}$"), extras.named():
        raise ModuleNotFoundError(name=library)


@pytest.mark.parametrize("error", [ModuleNotFoundError(name="mine"), ImportError(name="grain"), KeyError("grain")])
def test_other_errors_are_what_they_are(error):
    with pytest.raises(type(error)) as caught, extras.named():
        raise error
    assert caught.value is error


# What the layers need, and what Flax brings: the rest of "train" is not there.
PROGRAM = """
import os, sys
for name in sys.argv[1].split(","):
    sys.modules[name] = None
from posattn_jax import main
from posattn_jax.benchmarks import attention
from posattn_jax.sweeps import costs, glue_bundle
from posattn_jax.system import command_line
RUN = {
    "main": main.run,
    "attention": attention.run,
    "costs": lambda argv: command_line.run(costs.main, argv),
    "glue_bundle": lambda argv: command_line.run(glue_bundle.main, argv),
}
for line in sys.argv[2:]:
    command, *arguments = line.split()
    if not (child := os.fork()):
        os._exit(RUN[command]([command, *arguments]))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
DIGITS = "--config=configs/digits.py:tiny --workdir=build/none"


def test_every_command_says_what_it_lacks_in_a_line(tmp_path):
    modes = ("report", "evaluate", "predict", "explain", "translate", "generate", "export")
    write_json(tmp_path / "config.json", digits.get_config("tiny").to_dict())
    commands = [
        f"main {DIGITS}",
        f"main {DIGITS} --mode=sweep",
        f"main {DIGITS} --mode=benchmark",
        *(f"main --mode={mode} --workdir={tmp_path}" for mode in modes),
        f"main {DIGITS} --wandb=project",
        f"attention --out={tmp_path}",
        f"costs {DIGITS}",
        f"glue_bundle {tmp_path} composite",
    ]
    assert lacks("grain,matplotlib,markdown,submitit,tensorboardX", commands) == ["train"] * len(commands)


def lacks(missing, commands):
    """The extras that the commands name, each in its one line."""
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, missing, *commands], cwd=ROOT, env=environment(), capture_output=True, text=True
    )
    assert result.stdout.split() == ["2"] * len(commands), result.stderr
    told = re.findall(r"posattn_jax: error: \w+ is missing: pip install posattn_jax\[(\w+)\]\n", result.stderr)
    assert len(result.stderr.splitlines()) == len(commands)
    return told


@pytest.mark.slow
def test_what_only_the_end_of_the_work_needs_is_missed_before_it(tmp_path):
    """The run has no checkpoint, and the sweep no data: that would be told next."""
    write_json(tmp_path / "config.json", translation.get_config("tiny").to_dict())
    commands = {
        f"main --mode=evaluate --workdir={tmp_path}": "nlp",
        f"main --mode=sweep --config=configs/nmt.py:multi30k,tiny --workdir={tmp_path / 'sweep'}": "nlp",
        f"main --mode=export --workdir={tmp_path}": "export",
        f"main --mode=export --format=timm --workdir={tmp_path}": "convert",
    }
    assert lacks("sacrebleu,flatbuffers,safetensors", [*commands]) == [*commands.values()]
    assert lacks("sklearn", [f"main {DIGITS}"]) == ["train"]
    assert not (tmp_path / "sweep").exists()
