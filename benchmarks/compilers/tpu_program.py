"""The cycles of one program on a TPU, estimated without a TPU by the simulator of its compiler, libtpu.

  python -m benchmarks.compilers.tpu_program CASE     # what `tpu_cycles` starts; CASE is a `compiled.Case` as JSON

The simulator runs a program's schedule with its loops and the waits for its copies. It cannot follow steps that depend
on numbers that a kernel reads at run time. So the span is known while the program is compiled.
"""

import dataclasses
import json
import math
import os
import re
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental.topologies import get_topology_desc

from benchmarks.compilers.compiled import Case
from benchmarks.compilers.hlo import Instruction, Module
from posattn_jax.benchmarks.shapes import THRESHOLD
from posattn_jax.benchmarks.timing import one_pass
from posattn_jax.ops import grid
from posattn_jax.ops.attention import relative_attention

# The block of queries, and of keys, of JAX's flash attention.
FLASH_BLOCK = 512
# The environment of a process that has no TPU, and must not look for one.
ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
# A kernel's name is between the names of the transformations that made it, and a number.
_KERNEL = re.compile(r"^(?:(?:jvp|transpose|vmap)_)*(.+?)_*(?:\.\d+)?$")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')


def attention(case: Case) -> tuple[Callable, tuple[dict[str, Any], Any]]:
    """A function (arrays, cotangent) -> results, with a sigma that is known; and its arguments.

    The features of all heads are in one axis, as a layer's projections return them.
    """
    if case.implementation == "flash":
        return flash(case)
    shapes = case.shapes
    arrays = {name: _joined(shape, case.dtype) for name, shape in shapes.items()}
    # While a program for another device is traced, an array on the CPU is computed with on the CPU.
    sigma = jax.device_put(np.asarray(case.point.sigma, np.float32), jax.devices("cpu")[0])
    fixed = {"sigma": sigma, "grid_shape": case.point.grid_shape, "threshold": THRESHOLD}
    fixed["implementation"] = case.implementation

    def attend(arrays):
        apart = {name: array.reshape(shapes[name]) for name, array in arrays.items()}
        outputs: Any = relative_attention(**apart, **fixed)
        return outputs.reshape(arrays["query"].shape)

    return one_pass(attend, case.backward), (arrays, arrays["query"])


def _joined(shape, dtype):
    return jax.ShapeDtypeStruct((math.prod(shape[:-2]), math.prod(shape[-2:])), dtype)


def flash(case: Case) -> tuple[Callable, tuple[dict[str, Any], Any]]:
    """JAX's kernel for TPUs, which uses no positions, with as many keys as there are in the blocks a window touches.

    Splash attention supports the window itself, but reads it at run time, where libtpu's simulator aborts. The arrays
    are [b, h, t, d], as the kernel needs them.
    """
    from jax.experimental.pallas.ops.tpu import flash_attention as kernels

    where = grid.positions(case.point.grid_shape)
    block = min(FLASH_BLOCK, len(where))
    keys = block * max(
        len(np.unique(np.flatnonzero(np.all(np.abs(where - queries[:, None]) <= case.point.half, -1).any(0)) // block))
        for queries in np.split(where, range(block, len(where), block))
    )
    names = [field.name for field in dataclasses.fields(kernels.BlockSizes) if field.name.startswith("block")]
    sizes = kernels.BlockSizes(**dict.fromkeys(names, block) | {"block_b": 1})

    def attend(arrays):
        return kernels.flash_attention(arrays["query"], arrays["key"], arrays["value"], block_sizes=sizes)

    counts = {"query": len(where), "key": keys, "value": keys}
    arrays = {
        name: jax.ShapeDtypeStruct((case.batch, case.heads, count, case.head_dim), case.dtype)
        for name, count in counts.items()
    }
    return one_pass(attend, case.backward), (arrays, arrays["query"])


def compile_for(chip: str, function: Callable, arguments: tuple) -> str:
    """The text of a program for one chip, with the cycles of its instructions.

    Call it once per process, because libtpu reads its flags only when it starts.
    """
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LIBTPU_INIT_ARGS"] = f"--xla_jf_dump_static_llo_profile_to={folder}"
        device = get_topology_desc(topology_name=f"{chip}:1x1", platform="tpu").devices[0]
        there = jax.sharding.SingleDeviceSharding(device)
        arguments = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=there), arguments)
        with jax.default_device(device):  # implementations look at this
            return str(jax.jit(function).lower(*arguments).compile().as_text())


def cycles(instruction: Instruction) -> int:
    """The cycles of one run of an instruction; 0 if it takes none of its own."""
    found = _CYCLES.search(instruction.text)
    return int(found[1]) if found else 0


def by_kernel(text: str) -> dict[str, int]:
    """The cycles of each kernel, and those of all code that XLA itself generates, by the name "XLA".

    Raises:
      ValueError: the length of a loop, XLA's or a kernel's, is known only at run time.
    """
    found: dict[str, int] = {}
    for instruction, times in Module(text).runs(cycles):
        name = "XLA"
        if "tpu_custom_call" in instruction.text:
            name = _KERNEL.sub(r"\1", instruction.name)
            if "operand_layout_constraints={s32[" in instruction.text:
                raise ValueError(f"{name} reads numbers as it runs, which the simulator cannot follow")
        found[name] = found.get(name, 0) + times * cycles(instruction)
    return found


def main(argv: list[str]) -> int:
    """Prints {"cycles": the cycles by kernel}."""
    case = Case(*json.loads(argv[1]))
    print(json.dumps({"cycles": by_kernel(compile_for(case.target, *attention(case)))}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
