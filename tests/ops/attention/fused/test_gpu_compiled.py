"""The fused kernels as compiled for GPUs without one: in which order they use shared memory, and their registers."""

import importlib.util
import operator
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.mosaic import gpu as mgpu

from posattn_jax.benchmarks import sass
from posattn_jax.ops.attention.fused import layout
from tests.support import ptx

# Bytes that registers of any kernel have no room for, at most, with heads of 64 features in bfloat16.
SPILLED = 64
# In a process of its own: the compilers read their settings when they start.
PROGRAM = """
import pathlib, sys
from posattn_jax.benchmarks.compiled import Case
from posattn_jax.benchmarks.gpu_program import attention, compile_for

case = Case(sys.argv[1], "fused", "2d64", 8, 1, 2, 64, "bfloat16", True)
compile_for(case.target, *attention(case), pathlib.Path(sys.argv[2]))
"""


@pytest.mark.skipif(importlib.util.find_spec("jax_cuda12_plugin") is None, reason='needs the extra "gpu-aot"')
@pytest.mark.slow
@pytest.mark.parametrize("gpu", ["h200", "a100", "l4", "rtx4090", "b200", "rtx5090"])
def test_kernels_are_ordered_and_fit_registers(tmp_path, gpu):
    if gpu != "h200" and jax.__version_info__ < layout.MMA_NEEDS:
        pytest.skip("mma needs a newer jax")
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", PROGRAM, gpu, str(tmp_path)], env=environment, check=True)
    texts = {path: path.read_text() for path in tmp_path.glob("kernel_*.ptx")}
    forward = min(texts, key=lambda path: len(texts[path]))
    assert len(texts) >= 4  # and those of queries, of keys and values, of encodings: as many as shared memory asks for
    staging = 0
    for path, text in texts.items():
        found = ptx.events(text)
        assert ptx.COPIES & set(found)
        assert ptx.hazards(found) == []
        staging += "fence" in found
        (code,) = sass.assembled(text).values()
        assert code.spilled_bytes <= (0 if path == forward else SPILLED)
    assert staging == (2 if gpu == "h200" else 0)  # `wgmma` of what threads have written


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
