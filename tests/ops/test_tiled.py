from tests.ops.attention_suite import LocalSuite


class TestTiled(LocalSuite):
    implementation = "tiled"
