from tests.ops.attention.attention_suite import StaticSpanSuite


class TestPatch(StaticSpanSuite):
    implementation = "patch"
