"""The timing of the kernels for GPUs, on the lanes of a CPU."""

import functools
import re
import sys

import jax
import jax.numpy as jnp
import pytest

from benchmarks import gpu_kernels
from posattn_jax.ops import span
from tests.support.lanes import on_lanes


@pytest.mark.parametrize("half", [None, 2])
def test_a_case(half):
    arrays = gpu_kernels.make_arrays((6, 5), half, 1, 8, "float32")
    if half is not None:
        reach = span.half_span(arrays["sigma"], gpu_kernels.THRESHOLD, (6, 5))
        assert (reach == half).all() and reach.shape == (gpu_kernels.HEADS, 2)
    with on_lanes():
        attend = functools.partial(gpu_kernels._attend, grid_shape=(6, 5), implementation="fused")
        assert "attention_forward" in str(jax.make_jaxpr(attend)(arrays))
        line = gpu_kernels.measure(attend, arrays, calls=1)
    forward, both, _ = map(float, re.fullmatch(r"([\d.]+) / ([\d.]+) ms, (\d+) MiB", line).groups())
    assert 0 < forward < both


def test_time_of_a_call():
    calls = []
    assert gpu_kernels.milliseconds(lambda x: calls.append(x) or x, 3, jnp.ones(())) >= 0
    assert len(calls) == 6 * 3


def test_without_a_gpu(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["gpu_kernels"])
    with pytest.raises(SystemExit, match="no GPU: JAX has none here"):
        gpu_kernels.main()
