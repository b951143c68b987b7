"""Compiled programs that are kept on disk."""

import os
import subprocess
import sys

import jax
import pytest

from posattn_jax.config import experiment
from tests.support.command import ROOT, environment


def train(workdir, cache, **variables):
    """The command, as a user calls it who has told jax nothing of a cache."""
    of_tests = {name: value for name, value in environment().items() if "COMPILATION_CACHE" not in name}
    of_tests.pop("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS")
    arguments = ("--config=configs/digits.py:tiny", f"--workdir={workdir}", f"--config.cache_dir={cache}")
    subprocess.run(
        [sys.executable, "-m", "posattn_jax.main", *arguments],
        cwd=ROOT,
        env=of_tests | variables,
        check=True,
        capture_output=True,
    )
    return {path.name: path.stat().st_mtime_ns for path in cache.glob("compiled/*")}


@pytest.mark.slow
def test_a_second_run_compiles_nothing(tmp_path):
    """Nor does a damaged program hinder it."""
    kept = train(tmp_path / "first", tmp_path / "cache")
    assert len(kept) > 3
    assert train(tmp_path / "second", tmp_path / "cache") == kept
    largest = max((tmp_path / "cache" / "compiled").iterdir(), key=os.path.getsize)
    largest.write_bytes(largest.read_bytes()[:-100])
    train(tmp_path / "third", tmp_path / "cache")


def test_what_jax_was_told_is_kept_to(tmp_path, monkeypatch):
    """The tests' own cache is set: nothing else is."""
    told = jax.config.jax_compilation_cache_dir
    assert told
    experiment.keep_programs(tmp_path)
    assert jax.config.jax_compilation_cache_dir == told
    assert not (tmp_path / "compiled").exists()
