from tests.ops.attention.attention_suite import LocalSuite


class TestSingle(LocalSuite):
    implementation = "single"
