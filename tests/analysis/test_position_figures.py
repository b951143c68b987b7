import matplotlib.image
import matplotlib.pyplot as plt
import numpy as np
import pytest

from posattn_jax.analysis import position_figures
from posattn_jax.analysis.position_figures import draw_attention, draw_energies, draw_gating

RNG = np.random.default_rng(0)


@pytest.fixture
def kept(monkeypatch):
    """Figures as they are when they are saved."""
    figures = []
    save = position_figures._save
    monkeypatch.setattr(position_figures, "_save", lambda figure, path: figures.append(figure) or save(figure, path))
    return figures


def assert_drawn(paths, name, figures):
    """A .png that is not blank and an .svg, and no figure is left open."""
    assert [path.name for path in paths] == [f"{name}.png", f"{name}.svg"]
    assert matplotlib.image.imread(paths[0])[..., :3].std() > 0.01
    assert paths[1].read_text(encoding="utf-8").rstrip().endswith("</svg>")
    assert figures and not any(plt.fignum_exists(figure.number) for figure in figures)


def test_energies_of_every_head_in_one_scale(tmp_path, kept):
    energies = RNG.normal(size=(5, 6, 7))
    energies[2, 1, 3] = 9.0
    assert_drawn(draw_energies(energies, tmp_path / "figures" / "layer_0.5", "Layer 1, $x$"), "layer_0.5", kept)
    images = [axis.images[0] for axis in kept[0].axes if axis.images]
    assert len(images) == 5
    for head, image in enumerate(images):
        np.testing.assert_array_equal(image.get_array(), energies[head])
        assert image.get_clim() == (-9, 9)


def test_weights_begin_at_0_and_masked_keys_are_left_out(tmp_path, kept):
    weights = np.abs(RNG.normal(size=(1, 4, 4)))
    weights[0, 0, 1:] = -np.inf
    assert_drawn(draw_energies(weights, tmp_path / "weights.png", "Weights"), "weights", kept)
    image = kept[0].axes[0].images[0]
    assert image.get_clim() == (0, weights.max())
    np.testing.assert_array_equal(image.get_array().mask, np.isneginf(weights[0]))


def test_energies_that_are_all_the_same(tmp_path):
    for value in (0.0, -np.inf):
        draw_energies(np.full((1, 3, 3), value), tmp_path / "same", "All the same")


def test_attention_has_its_tokens(tmp_path, kept):
    queries, keys = ["▁wir", "$", "5", "$"], ["▁we", "▁pay", "$", "5", "_a^{"]
    weights = RNG.dirichlet(np.ones(5), (2, 4))
    assert_drawn(draw_attention(weights, queries, keys, tmp_path / "attention"), "attention", kept)
    for axis in kept[0].axes[:2]:
        assert [label.get_text() for label in axis.get_xticklabels()] == keys
        assert [label.get_text() for label in axis.get_yticklabels()] == queries


def test_attention_needs_a_token_each(tmp_path):
    with pytest.raises(ValueError, match="weights of 2 queries and 3 keys: 3 and 3 tokens were given"):
        draw_attention(np.ones((1, 2, 3)), list("abc"), list("abc"), tmp_path / "attention")


def test_a_gate_by_what_queries_and_keys_know(tmp_path, kept):
    table = {"position-position": (27.0, 20.0), "token-position": (None, 26.0), "token-token": (27.5, 27.6)}
    assert_drawn(draw_gating(table, tmp_path / "gating.svg", "BLEU"), "gating", kept)
    axis = kept[0].axes[0]
    assert [label.get_text() for label in axis.get_xticklabels()] == list(table)
    for line, scores in zip(axis.lines, zip(*table.values(), strict=True), strict=True):
        np.testing.assert_array_equal(line.get_ydata(), np.array(scores, float))
    assert axis.get_ylabel() == "BLEU"
