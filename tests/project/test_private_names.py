"""Private names of libraries stand in one file each; the bounds of setup.py are the versions that have them."""

import inspect
import pathlib
import re

import pytest
from orbax.checkpoint.path import atomicity

PACKAGE = pathlib.Path("posattn_jax")
# What is looked for -> the one file that has it.
PRIVATE = {
    r"\bjax\._src import dispatch\b": "ops/attention/operation.py",
    r"\bjax\._src import distributed\b": "system/processes.py",
    r"\._(tmp_path|final_path)\b": "train/checkpoint.py",
}


@pytest.mark.parametrize("pattern, file", PRIVATE.items())
def test_one_file_has_it(pattern, file):
    users = [path for path in PACKAGE.rglob("*.py") if re.search(pattern, path.read_text(encoding="utf-8"))]
    assert users == [PACKAGE / file]


def test_no_other_private_name_of_jax():
    text = "".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    assert len(re.findall(r"\bjax\._src\b", text)) == sum(name.startswith(r"\bjax\._src") for name in PRIVATE)


def test_orbax_has_the_paths_of_a_checkpoint_that_is_being_saved():
    """Of every orbax-checkpoint that setup.py allows: `_WithSums` renames what it writes."""
    source = inspect.getsource(atomicity.AtomicRenameTemporaryPath)
    assert "self._tmp_path" in source and "self._final_path" in source
