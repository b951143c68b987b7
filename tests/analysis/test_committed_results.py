"""The results under docs/results follow from the run summaries beside them."""

import json
import pathlib

import jax
import pytest

from posattn_jax.analysis import report
from posattn_jax.analysis.findings import findings, outcomes
from posattn_jax.analysis.run_folders import read_runs

FOLDERS = sorted(path.parent for path in pathlib.Path("docs/results").glob("*/sweep.json"))


def test_there_are_some():
    assert FOLDERS


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_figures_and_verdicts(folder):
    runs = read_runs(folder)
    results = json.loads((folder / "report" / "results.json").read_text())
    found, tested = outcomes(runs), findings(runs)
    again = json.loads(json.dumps(report._results(runs, found, tested)))
    for part in ("treatments", "hypotheses", "runs"):
        (computed, tree), (committed, expected) = jax.tree.flatten(again[part]), jax.tree.flatten(results[part])
        assert tree == expected
        for x, y in zip(computed, committed, strict=True):
            # The last digits of a float are those of a Python's `sum` and of a SciPy.
            assert x == (pytest.approx(y, rel=1e-12, abs=0) if isinstance(y, float) else y)
    text = (folder / "report" / "report.md").read_text()
    assert (folder / "report" / "index.html").exists()
    for finding in tested:
        assert finding.verdict in text
    for line in report._outcome_table(runs, found).splitlines() + report._finding_table(tested).splitlines():
        assert line in text
