"""Where a program's time goes."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from posattn_jax.benchmarks import parts
from posattn_jax.benchmarks.timing import Skipped

HLO = """
ENTRY %main.1 (x: f32[2]) -> f32[2] {
  %x = f32[2]{0} parameter(0)
  %dot.1 = f32[2,8]{1,0} fusion(%x), kind=kLoop, calls=%c, metadata={op_name="jit(f)/jvp(M)/blocks_0/attention/dot"}
  %while.2 = (s32[], f32[2]{0}) while(%t), condition=%a, body=%b, metadata={op_name="jit(f)/blocks_0/attention/while"}
  add.3 = f32[2]{0} add(%x, %x), metadata={op_name="jit(f)/optimizer/add" stack_frame_id=3}
  ROOT %copy.4 = f32[2]{0} copy(%x)
}
"""


def test_parts_of_instructions():
    """What runs others is left out."""
    found = parts.parts_of(HLO)
    assert found == {"x": "rest", "dot.1": "attention", "add.3": "optimiser", "copy.4": "rest"}


def test_shares():
    """Two threads at once count twice; what is no instruction is not counted; gaps are idle."""
    events = [("dot.1", 0.0, 3.0), ("dot.1", 1.0, 4.0), ("add.3", 6.0, 7.0), ("copy.4", 7.0, 8.0), ("other", 0.0, 10.0)]
    found = parts.shares(events, parts.parts_of(HLO), seconds=10.0)
    expected = {"busy": 0.8, "idle": 0.4, "attention": 6 / 8, "feed-forward": 0, "optimiser": 1 / 8, "rest": 1 / 8}
    assert found == pytest.approx(expected)
    with pytest.raises(Skipped, match="no instruction of the program"):
        parts.shares([("other", 0.0, 1.0)], parts.parts_of(HLO), seconds=1.0)


def test_events_of_a_gpu_are_those_of_its_kernels():
    """They name their instruction in a statistic. The host's threads count only on a CPU."""

    def plane(name, event, **stats):
        events = [SimpleNamespace(name=event, start_ns=1e9, duration_ns=2e9, stats=list(stats.items()))]
        return SimpleNamespace(name=name, lines=[SimpleNamespace(events=events)])

    planes = [plane("/host:CPU", "copy.4"), plane("/device:GPU:0", "gemm_kernel", hlo_op="dot.1")]
    profile = SimpleNamespace(planes=planes)
    assert list(parts.events_of(profile, "gpu")) == [("dot.1", 1.0, 3.0)]
    assert [name for name, *_ in parts.events_of(profile, "cpu")] == ["copy.4", "dot.1"]


def test_a_real_profile(tmp_path):
    """Nearly all the work is in one part; the trace is kept for Perfetto."""

    def function(x):
        with jax.named_scope("optimizer"):
            for _ in range(4):
                x = jnp.tanh(x @ x)
        return x + 1

    compiled = jax.jit(function).lower(jnp.ones((400, 400))).compile()
    x = jnp.ones((400, 400)) / 400
    found = parts.measure(lambda: jax.block_until_ready(compiled(x)), compiled.as_text(), tmp_path)
    assert found["optimiser"] > 0.7
    assert 0 <= found["idle"] < 1
    assert list(tmp_path.glob("**/perfetto_trace.json.gz"))
