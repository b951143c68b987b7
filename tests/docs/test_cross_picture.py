"""The picture of the made-up languages."""

import sys

import numpy as np
import pytest

from docs.figures import cross_picture
from posattn_jax.analysis.plan import Plan, Treatment
from posattn_jax.analysis.runs import Run, Runs
from posattn_jax.system.errors import InputError


def test_shares_and_the_picture(tmp_path):
    """The share of content is that of the first part, of every head of every block."""
    mixture = np.log(np.array([[1.0, 3.0], [1.0, 1.0]]))
    params = {"decoder": {f"blocks_{i}": {"cross": {"energies": {"mixture": mixture + i}}} for i in range(2)}}
    np.testing.assert_allclose(cross_picture.content_shares(params), [0.25, 0.5, 0.25, 0.5])
    with pytest.raises(InputError, match="no mixture"):
        cross_picture.content_shares({"decoder": {"kernel": mixture}})
    names = [f"{language}_{mixer}" for language in cross_picture.LANGUAGES for mixer in cross_picture.MIXERS]
    runs = {name: [Run(name, seed, {}, {}, {}, 90.0 + seed) for seed in range(3)] for name in names}
    plan = Plan("?", tuple(Treatment(name, name, {}) for name in names), ())
    shares = {language: np.linspace(0.1, 0.9, 8) for language in cross_picture.LANGUAGES}
    with pytest.raises(InputError, match="no finished run of sorted_mixed_c"):
        cross_picture.shares_of(tmp_path, Runs(plan, {}, [], [], {}, {}, {}, {}), "sorted")
    cross_picture.draw(Runs(plan, runs, [], [], {}, {}, {}, {}), shares, tmp_path / "drawn.png")
    assert (tmp_path / "drawn.png").stat().st_size > 20_000


def test_a_sweep_without_a_report_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["cross_picture", str(tmp_path), "--out=none.png"])
    with pytest.raises(SystemExit):
        cross_picture.main()
    assert "the sweep has no report" in capsys.readouterr().err
