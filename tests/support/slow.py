"""Cases of a parametrized test that only `-m slow` runs."""

import pytest


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)
