"""A sweep's report."""

import pathlib

from posattn_jax.analysis.findings import findings, outcomes
from posattn_jax.analysis.run_folders import read_runs


def write(workdir: pathlib.Path) -> None:
    runs = read_runs(workdir)
    for outcome in outcomes(runs):
        print(outcome)
    for finding in findings(runs):
        print(finding)
