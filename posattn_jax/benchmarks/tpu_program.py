"""The cycles of one program on a TPU that is not there, by the simulator of its compiler, libtpu.

  python -m posattn_jax.benchmarks.tpu_program CASE     # what `tpu_cycles` starts; CASE is a `compiled.Case` as JSON

The simulator runs a program's schedule with its loops and the waits for its copies. It cannot follow what depends on
numbers that a kernel reads as it runs: so the span is known while the program is compiled.
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

from posattn_jax.benchmarks.compiled import Case
from posattn_jax.benchmarks.hlo import Instruction, Module
from posattn_jax.benchmarks.shapes import THRESHOLD
from posattn_jax.benchmarks.timing import one_pass
from posattn_jax.ops import grid
from posattn_jax.ops.attention import relative_attention

# Of JAX's flash attention, the queries and the keys that meet at once.
FLASH_BLOCK = 512
# What a process needs that has no TPU, and shall not look for one.
ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
# A kernel's name stands between those of the transformations that it was made by, and a number.
_KERNEL = re.compile(r"^(?:(?:jvp|transpose|vmap)_)*(.+?)_*(?:\.\d+)?$")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')


def attention(case: Case) -> tuple[Callable, tuple[dict[str, Any], Any]]:
    """(arrays, cotangent) -> results, with a sigma that is known; and these arguments.

    The features of all heads are in one axis, as a layer's projections have them.
    """
    if case.layout == "flash":
        return flash(case)
    shapes = case.shapes
    arrays = {name: _joined(shape, case.dtype) for name, shape in shapes.items()}
    # An array that lies on the CPU is computed with there, while a program for another device is traced.
    sigma = jax.device_put(np.asarray(case.point.sigma, np.float32), jax.devices("cpu")[0])
    fixed = {"sigma": sigma, "grid_shape": case.point.grid_shape, "threshold": THRESHOLD, "implementation": case.layout}

    def attend(arrays):
        apart = {name: array.reshape(shapes[name]) for name, array in arrays.items()}
        outputs = relative_attention(**apart, **fixed)
        return outputs.reshape(arrays["query"].shape)

    return one_pass(attend, case.backward), (arrays, arrays["query"])


def _joined(shape, dtype):
    return jax.ShapeDtypeStruct((math.prod(shape[:-2]), math.prod(shape[-2:])), dtype)


def flash(case: Case) -> tuple[Callable, tuple[dict[str, Any], Any]]:
    """JAX's kernel for TPUs, which knows no positions, with as many keys as the blocks have that a window touches.

    Splash attention has the window itself, but reads it as it runs: libtpu's simulator aborts. Arrays are as the kernel
    has them, [b, h, t, d].
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
    """The text of a program for one chip, with the cycles of its instructions. Once a process: libtpu reads its flags
    when it starts."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LIBTPU_INIT_ARGS"] = f"--xla_jf_dump_static_llo_profile_to={folder}"
        device = get_topology_desc(topology_name=f"{chip}:1x1", platform="tpu").devices[0]
        there = jax.sharding.SingleDeviceSharding(device)
        arguments = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=there), arguments)
        with jax.default_device(device):  # what layouts go by
            return str(jax.jit(function).lower(*arguments).compile().as_text())


def cycles(instruction: Instruction) -> int:
    """Of one run of it; 0 of what takes none of its own."""
    found = _CYCLES.search(instruction.text)
    return int(found[1]) if found else 0


def by_kernel(text: str) -> dict[str, int]:
    """Cycles by kernel, and of all that XLA makes itself: "XLA".

    Raises:
      ValueError: loops whose length is known only at run time, XLA's or a kernel's.
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
    """Prints {"cycles": by kernel}."""
    case = Case(*json.loads(argv[1]))
    print(json.dumps({"cycles": by_kernel(compile_for(case.target, *attention(case)))}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
