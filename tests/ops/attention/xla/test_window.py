import pytest

from tests.ops.attention.attention_suite import StaticSpanSuite


class TestWindow(StaticSpanSuite):
    implementation = "window"
    pytestmark = pytest.mark.slow  # `test_covariance.py` has most of it, of a factor instead of sigma
