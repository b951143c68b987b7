"""The reports under docs/results follow from the runs next to them."""

import pathlib

import pytest

from posattn_jax.analysis import report
from posattn_jax.analysis.findings import findings, outcomes
from posattn_jax.analysis.runs.run_folders import read_runs

FOLDERS = sorted(path.parent for path in pathlib.Path("docs/results").glob("*/runs.jsonl"))


def test_there_are_some():
    assert FOLDERS


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_word_and_table_of_a_report(folder):
    """Those of the bootstrap's p excepted, which are kept as they were computed."""
    runs = read_runs(folder)
    assert report.compose(runs, outcomes(runs), findings(runs)) == (folder / "report.md").read_text(encoding="utf-8")


def test_they_are_small():
    """What can be made again is not committed: see .gitignore."""
    for folder in FOLDERS:
        assert sum(path.stat().st_size for path in folder.glob("*") if path.suffix in (".jsonl", ".md")) < 200_000
    assert not [path for folder in FOLDERS for path in folder.glob("*/*/*.json")]
