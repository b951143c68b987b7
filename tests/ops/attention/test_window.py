from tests.ops.attention.attention_suite import StaticSpanSuite


class TestWindow(StaticSpanSuite):
    implementation = "window"
