"""Figures of the pages are those of the committed measurements."""

import json
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]
CPU = ROOT / "benchmarks" / "results" / "cpu"


def page(name):
    """Its text in one line."""
    return " ".join((ROOT / "docs" / name).read_text().split())


def short(value):
    """Two decimals, without the 0 before the point."""
    return f"{value:.2f}".removeprefix("0")


def test_windows_at_other_numbers_of_features():
    points = json.loads((CPU / "rivals" / "windows_32_128.json").read_text())["points"]
    shares = [each["rivals"]["native"]["median_ms"] / each["rivals"]["sdpa"]["median_ms"] for each in points]
    assert f"another day, windows took {short(min(shares))} to {short(max(shares))} of PyTorch" in page("cpu.md")


def test_memory_of_a_cut_grid():
    programs = json.loads((CPU / "halo" / "results.json").read_text())["programs"]
    memory = {(each["pass"], each["half"], each["devices"]): each["memory_bytes"]["all"] / 2**20 for each in programs}
    rows = re.findall(r"\| (\d) \| (\d) \| [\d.]+ / [\d.]+ \| \d+ / \d+ \| [\d.]+ \| (\d+ / \d+) \|", page("span.md"))
    assert len(rows) == 6
    for half, devices, told in rows:
        here = (memory[each, int(half), int(devices)] for each in ("forward", "forward_backward"))
        assert told == " / ".join(f"{each:.0f}" for each in here)


def test_smallest_model_of_the_comparisons():
    sweeps = [ROOT / "docs" / "results" / name / "runs.jsonl" for name in ("compare", "compare_cifar", "compare_text")]
    rows = (json.loads(line) for sweep in sweeps for line in sweep.read_text().splitlines())
    smallest = min(row["summary"]["num_parameters"] for row in rows if "seed" in row)
    assert f"{smallest / 1000:.0f} thousand parameters and more" in page("choosing.md")
