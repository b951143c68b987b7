from tests.ops.attention_suite import StaticSpanSuite


class TestPatch(StaticSpanSuite):
    implementation = "patch"
