"""The benchmark of Translution's forms as a user runs it, small."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax.benchmarks import translution
from posattn_jax.ops import translution as ops

SMALL = ("--batch=2", "--width=4", "--heads=2", "--half_span=1", "--rank=2", "--num_bases=3", "--repeats=3")


@pytest.mark.slow
def test_every_form_is_measured(tmp_path, capsys):
    arguments = ("--grids=2x3,4", "--memory_limit_gib=.5", f"--out={tmp_path}")
    assert translution.run(["translution", *SMALL, *arguments]) == 0
    grids = json.loads((tmp_path / "results.json").read_text())["grids"]
    assert [measured["grid"] for measured in grids] == [[2, 3], [4]]
    forms = grids[0]["forms"]
    matrix = 4 * 4
    assert {name: figures["parameters"] for name, figures in forms.items()} == {
        "naive": 3 * 5 * matrix,
        "full": 3 * 5 * matrix,
        "span, half 1": 3 * 3 * matrix,
        "low rank 2": matrix + 3 * 5 * 4 * 2 * 2 + 2 * 2 * 2,
        "general, 3 matrices": 3 * matrix + 3 * 5 * 3,
    }
    for measured in grids:
        for figures in measured["forms"].values():
            assert figures["repeats"] == 3 and min(figures["median_ms"], figures["multiplications"]) > 0
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in printed if " x " in line or line == "4"] == ["2 x 3", "4"]
    assert sum(line.startswith("general, 3 matrices") for line in printed) == 2


def test_naive_is_the_same_sum(float64):
    rng = np.random.default_rng(0)
    x = {"weights": rng.normal(size=(2, 2, 6, 6)), "inputs": rng.normal(size=(2, 6, 3))}
    x["matrices"] = rng.normal(size=(3, 5, 3, 2, 2))
    x = {name: jnp.asarray(array) for name, array in x.items()}
    expected = ops.translution(**x, grid_shape=(2, 3))
    np.testing.assert_allclose(translution.naive_translution(**x, grid_shape=(2, 3)), expected, rtol=1e-10)


@pytest.mark.parametrize(
    "argument, message",
    [
        ("--grids=4xa", "--grids=4xa"),
        ("--grids=", "--grids is empty"),
        ("--grids=0x2", "--grids=0x2"),
        ("--heads=3", "--heads=3 does not divide --width=64"),
        ("--rank=0", "flag --rank=0"),
        ("8x8", 'unexpected argument "8x8"'),
    ],
)
def test_bad_input_is_one_line(argument, message, capsys):
    assert translution.run(["translution", argument]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1
