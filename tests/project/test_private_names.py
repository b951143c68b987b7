"""What is private or experimental in libraries stands in few files; setup.py bounds the versions that have it."""

import inspect
import pathlib
import re

import pytest
from orbax.checkpoint.path import atomicity

FOLDERS = ("posattn_jax", "tests", "benchmarks", "configs", "launch")
IMPORTED = r"^\s*(?:from|import) {}\b"
# What is looked for -> the files that have it.
PRIVATE = {
    IMPORTED.format(r"jax\._src"): {
        "posattn_jax/system/compat.py",
        "tests/conftest.py",  # one context of MLIR for many programs
        "tests/ops/attention/test_platform.py",  # a cuDNN that refuses
    },
    IMPORTED.format(r"jax\.(?:extend|interpreters|core)"): {
        "posattn_jax/system/compat.py",
        "benchmarks/device/machine.py",  # the version of a device's software
    },
    r"\._(tmp_path|final_path)\b": {"posattn_jax/train/checkpoint.py"},
}


def users(pattern: str, folders=FOLDERS) -> set[str]:
    own = pathlib.Path(__file__).resolve()
    files = (path for folder in folders for path in pathlib.Path(folder).rglob("*.py") if path.resolve() != own)
    return {path.as_posix() for path in files if re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)}


@pytest.mark.parametrize("pattern, files", PRIVATE.items())
def test_these_files_have_it(pattern, files):
    assert users(pattern) == files


def test_experimental_names():
    """Those of Pallas are where kernels are written in it; all others of the package are in `compat`."""
    experimental = users(r"\bjax\.experimental\b", ["posattn_jax"])
    pallas = {path for path in experimental if path.startswith("posattn_jax/ops/attention/")}
    assert experimental - pallas == {"posattn_jax/system/compat.py"}
    for path in pallas:
        lines = pathlib.Path(path).read_text(encoding="utf-8").splitlines()
        assert all("pallas" in line for line in lines if "jax.experimental" in line)


def test_orbax_has_the_paths_of_a_checkpoint_that_is_being_saved():
    """Of every orbax-checkpoint that setup.py allows: `_WithSums` renames what it writes."""
    source = inspect.getsource(atomicity.AtomicRenameTemporaryPath)
    assert "self._tmp_path" in source and "self._final_path" in source
