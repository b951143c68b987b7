import importlib
import inspect
import re
import sys

import pytest

from posattn_jax.system.command_line import run
from tests.support.command import ROOT

FOLDERS = ("posattn_jax/benchmarks", "benchmarks", "docs/figures", "posattn_jax/sweeps")
COMMANDS = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*.py")
    if re.search("^if __name__", path.read_text(), re.MULTILINE)
    and not re.search("torch|_program", path.name)  # which is not here, and what a command runs
)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_tells_what_it_is_for(command, capsys, monkeypatch):
    module = importlib.import_module(command)
    monkeypatch.setattr(sys, "argv", [command, "--help"])  # argparse reads it from there
    with pytest.raises(SystemExit) as ended:
        run(module.main, sys.argv) if inspect.signature(module.main).parameters else module.main()
    assert not ended.value.code
    shown = capsys.readouterr().out
    assert " ".join(module.__doc__.split()[:4]) in " ".join(shown.split())
