"""How pictures look."""

import matplotlib.pyplot as plt
import pytest

from posattn_jax.system.plot_style import panels, save, style, whole_ticks


def test_curves_are_told_apart_without_their_colours():
    kinds = [style(number) for number in range(56)]
    assert len({(kind["linestyle"], kind["marker"]) for kind in kinds}) == 56
    assert len({kind["color"] for kind in kinds[:7]}) == 7


@pytest.mark.parametrize("count, columns, expected", [(5, 4, (2, 3)), (4, 4, (1, 4)), (9, 4, (3, 3)), (1, 3, (1, 1))])
def test_panels_are_even(count, columns, expected):
    figure, axes = panels(count, columns, 1.0, 1.0)
    grid = axes[0].get_gridspec()
    plt.close(figure)
    assert len(axes) == count and (grid.nrows, grid.ncols) == expected


def test_the_same_picture_is_the_same_file(tmp_path):
    before = plt.get_fignums()  # of other tests
    for name in "ab":
        figure, (axis,) = panels(1, 1, 2.0, 1.0)
        axis.plot([0.5, 2.5], [1, 2], **style(0))
        whole_ticks(axis.xaxis)
        save(figure, tmp_path / f"{name}.svg", tmp_path / f"{name}.png")
        assert all(tick == int(tick) for tick in axis.get_xticks())
    for kind in ("svg", "png"):
        assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()
    assert plt.get_fignums() == before
