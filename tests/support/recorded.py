"""What a run wrote down."""

import pathlib

from posattn_jax.system.files import read_metrics


def figures_of(workdir: pathlib.Path) -> list[dict]:
    """The rows of a run's metrics, those of the clock left out: equal runs have equal ones."""
    return [row for row in read_metrics(workdir / "metrics.jsonl") if row["split"] != "speed"]
