"""Pictures of attention between positions."""

import matplotlib.image
import matplotlib.pyplot as plt
import numpy as np
import pytest

from posattn_jax.analysis.position_figures import alpha_and_beta, attention_of_a_sentence, energies_of_heads, gating

RNG = np.random.default_rng(0)


def assert_drawn(figure, path):
    """A picture that is not blank."""
    figure.savefig(path / "drawn.png")
    plt.close(figure)
    assert matplotlib.image.imread(path / "drawn.png")[..., :3].std() > 0.01


def test_energies_of_every_head_in_one_scale(tmp_path):
    energies = RNG.normal(size=(5, 6, 7))
    energies[2, 1, 3] = 9.0
    figure = energies_of_heads(energies, "Layer 1, $x$")
    assert_drawn(figure, tmp_path)
    images = [axis.images[0] for axis in figure.axes if axis.images]
    assert len(images) == 5
    for head, image in enumerate(images):
        np.testing.assert_array_equal(image.get_array(), energies[head])
        assert image.get_clim() == (-9, 9)


def test_weights_begin_at_0_and_masked_keys_are_left_out(tmp_path):
    weights = np.abs(RNG.normal(size=(1, 4, 4)))
    weights[0, 0, 1:] = -np.inf
    figure = energies_of_heads(weights, "Weights")
    assert_drawn(figure, tmp_path)
    image = figure.axes[0].images[0]
    assert image.get_clim() == (0, weights.max())
    np.testing.assert_array_equal(image.get_array().mask, np.isneginf(weights[0]))


def test_energies_that_are_all_the_same(tmp_path):
    for value in (0.0, -np.inf):
        assert_drawn(energies_of_heads(np.full((1, 3, 3), value), "All the same"), tmp_path)


def test_attention_has_its_tokens(tmp_path):
    queries, keys = ["▁wir", "$", "5", "$"], ["▁we", "▁pay", "$", "5", "_a^{"]
    weights = RNG.dirichlet(np.ones(5), (2, 4))
    figure = attention_of_a_sentence(weights, queries, keys)
    assert_drawn(figure, tmp_path)
    for axis in figure.axes[:2]:
        assert [label.get_text() for label in axis.get_xticklabels()] == keys
        assert [label.get_text() for label in axis.get_yticklabels()] == queries


def test_attention_needs_a_token_each():
    with pytest.raises(ValueError, match="2 queries and 3 keys: 3 and 3"):
        attention_of_a_sentence(np.ones((1, 2, 3)), list("abc"), list("abc"))


def test_alpha_and_beta_have_a_row_a_head_and_a_scale_a_column(tmp_path):
    queries, keys = ["▁wir", "$"], ["▁we", "$", "_a^{"]
    alpha, beta = RNG.dirichlet(np.ones(3), (2, 2)), np.abs(RNG.normal(size=(2, 2, 3)))
    figure = alpha_and_beta(alpha, beta, queries, keys)
    assert_drawn(figure, tmp_path)
    panels = [axis for axis in figure.axes if axis.images and axis.get_title()]
    assert len(panels) == 6
    for column, weights in enumerate((alpha, beta, alpha * beta)):
        for head, axis in enumerate(panels[column::3]):
            np.testing.assert_array_equal(axis.images[0].get_array(), weights[head])
            assert axis.images[0].get_clim() == (0, weights.max())
    assert [label.get_text() for label in panels[3].get_xticklabels()] == keys
    assert [label.get_text() for label in panels[0].get_yticklabels()] == queries
    with pytest.raises(ValueError, match="2 queries and 3 keys: 3 and 3"):
        alpha_and_beta(alpha, beta, list("abc"), keys)


def test_a_gate_by_what_queries_and_keys_know(tmp_path):
    table = {"position-position": (27.0, 20.0), "token-position": (None, 26.0), "token-token": (27.5, 27.6)}
    figure = gating(table, "BLEU")
    assert_drawn(figure, tmp_path)
    axis = figure.axes[0]
    assert [label.get_text() for label in axis.get_xticklabels()] == list(table)
    for line, scores in zip(axis.lines, zip(*table.values(), strict=True), strict=True):
        np.testing.assert_array_equal(line.get_ydata(), np.array(scores, float))
    assert axis.get_ylabel() == "BLEU"
