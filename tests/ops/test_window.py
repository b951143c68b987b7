from tests.ops.attention_suite import StaticSpanSuite


class TestWindow(StaticSpanSuite):
    implementation = "window"
