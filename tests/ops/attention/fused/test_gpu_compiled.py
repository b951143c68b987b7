"""The fused kernels as compiled for GPUs without one: in which order they use shared memory, and their registers."""

import importlib.util
import operator
import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.mosaic import gpu as mgpu

from posattn_jax.ops.attention.fused import layout
from tests.support import ptx

PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")
# Bytes that registers of any kernel have no room for, at most, with heads of 64 features in bfloat16.
SPILLED = 64

compiled = pytest.mark.skipif(
    not any(map(importlib.util.find_spec, PLUGINS)), reason="needs jax's plugin for CUDA, which compiles without a GPU"
)


@compiled
@pytest.mark.slow
@pytest.mark.parametrize("capability", [layout.HOPPER, "8.0", "8.9", "10.0", "12.0"])
def test_kernels_are_ordered_and_fit_registers(tmp_path, capability):
    if capability != layout.HOPPER and jax.__version_info__ < layout.MMA_NEEDS:
        pytest.skip("mma needs a newer jax")
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "MOSAIC_GPU_DUMP_TO": str(tmp_path)}
    command = [sys.executable, "-m", "tests.support.compile_for_gpu", capability, "64"]
    subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    texts = {path: path.read_text() for path in tmp_path.glob("*.ptx")}
    forward = min(texts, key=lambda path: len(texts[path]))
    assert len(texts) >= 4  # and those of queries, of keys and values, of encodings: as many as shared memory asks for
    staging = 0
    for path, text in texts.items():
        found = ptx.events(text)
        assert ptx.COPIES & set(found)
        assert ptx.hazards(found) == []
        staging += "fence" in found
        spilled = re.search(r"(\d+) bytes spill stores", path.with_suffix(".ptxas").read_text())
        assert spilled and int(spilled[1]) <= (0 if path == forward else SPILLED)
    assert staging == (2 if capability == layout.HOPPER else 0)  # `wgmma` of what threads have written


@pytest.mark.skipif(jax.__version_info__ < layout.MMA_NEEDS, reason="mma needs a newer jax")
def test_a_thread_holds_the_same_entries_of_an_accumulator_and_an_operand():
    """In the same order, so that `MmaWarpgroup` takes the one for the other."""

    def places(layout):
        strides = layout.tiling.tile_strides((64, 1))
        registers = [sum(map(operator.mul, at, strides)) for at in np.ndindex(layout.registers_shape((64, 64)))]
        return registers, [strides[dim] for dim in (layout.warp_dims[0], *layout.lane_dims, layout.vector_dim)]

    assert places(mgpu.MMALayouts(jnp.bfloat16).lhs) == places(mgpu.WGMMA_LAYOUT)


ORDERED = """
$loop:
  bar.sync 0;
  mbarrier.arrive.expect_tx.shared.b64 %a, [%b], 64;
  cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%a], [%b, {%c, %d}], [%e];
  mbarrier.try_wait.parity.shared.b64 p, [%a], %b;
  wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%a}, %b, %c, p, 1, 1, 0, 0;
  wgmma.wait_group.sync.aligned 0;
  st.shared.v2.b32 [%a], {%b, %c};
  bar.sync 0;
  ld.shared.b32 %a, [%b];
  bar.sync 0;
  st.shared.b32 [%a], %b;
  fence.proxy.async.shared::cta;
  bar.sync 0;
  wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%a}, %b, %c, p, 1, 1, 0, 0;
  wgmma.wait_group.sync.aligned 0;
  @%p bra $loop;
"""


@pytest.mark.parametrize("without", [None, 2, 3, 4, 5, 7, 9, 11, 14, 16])
def test_what_is_out_of_order_is_told(without):
    """Each line that a kernel's order depends on, left out."""
    lines = ORDERED.splitlines()
    text = "\n".join(line for number, line in enumerate(lines) if number != without)
    assert bool(ptx.hazards(ptx.events(text))) == (without is not None)
