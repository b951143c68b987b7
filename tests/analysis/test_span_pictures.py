import numpy as np
import pytest

from posattn_jax.analysis.span_pictures import mean_factor, on_grid, on_image


def test_a_span_in_two_dimensions_is_a_box():
    summary = {"grid_shape": [5, 7], "threshold": 0.1}
    sigma = np.array([0.2, 0.1])  # half-spans ceil(2.146 * .2 * 4) = 2 and ceil(2.146 * .1 * 6) = 2
    gaussian, inside = on_image(mean_factor(sigma, 2), summary, (5, 7))
    assert inside.tolist() == [[abs(column - 3) <= 2 for column in range(7)]] * 5
    assert gaussian[2, 3] == 1
    assert gaussian[1, 5] == pytest.approx(np.exp(-0.5 * ((1 / 4 / 0.2) ** 2 + (2 / 6 / 0.1) ** 2)))


def test_a_span_in_one_dimension_covers_whole_rows():
    """Three positions on each side of pixel (1, 2) of 3 x 4: index 6, so indices 3 to 9."""
    summary = {"grid_shape": [12], "threshold": 0.1}
    gaussian, inside = on_image(mean_factor(np.array([0.12]), 1), summary, (3, 4))
    assert np.flatnonzero(inside).tolist() == [3, 4, 5, 6, 7, 8, 9]
    assert gaussian[2, 1] == pytest.approx(np.exp(-0.5 * (3 / 11 / 0.12) ** 2))


def test_without_a_mask_everything_is_inside():
    summary = {"grid_shape": [5, 7], "threshold": 0.0}
    assert on_image(mean_factor(np.array([[[0.2, 9.0], [0.1, 0.1]]]), 2), summary, (5, 7))[1].all()


def test_a_learned_window_is_drawn_as_it_is():
    """The mean over its heads; of a box without one, what is inside."""
    summary = {"grid_shape": [4], "threshold": np.exp(-0.5), "span_mode": "box", "initial_sigma": None}
    summary |= {name: {} for name in ("pair_share", "score_share", "initial_pair_share")}
    positions = {"block_0/sigma": np.array([[0.4], [0.4]])}  # a half-span of ceil(.4 x 3) = 2
    m = np.array([[0, 0.2, 1, 1, 1, 0.2, 0], [0, 0.4, 0.5, 1, 0.5, 0.4, 0]]).T
    for more, expected in (({}, [0, 1, 1, 1, 1, 1, 0]), ({"block_0/log_window": np.log(m + 1e-30)}, m.mean(1))):
        (axis,) = [axis for axis in on_grid(positions | more, summary).axes if axis.get_ylabel() == "window"]
        np.testing.assert_allclose(axis.lines[0].get_ydata(), expected, atol=1e-6)
        assert axis.get_title() == "layer 1\nreach: 2"
