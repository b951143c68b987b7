"""The code of one program for a GPU, compiled without a GPU: the PTX of XLA, assembled, and our kernels.

python -m benchmarks.compilers.gpu_program CASE     # what `gpu_code` starts; CASE is a `compiled.Case` as JSON
"""

import json
import math
import os
import pathlib
import re
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import jax
from jax.experimental.topologies import get_topology_desc

from benchmarks.compilers import sass
from benchmarks.compilers.compiled import Case
from benchmarks.compilers.gpus import GPUS
from benchmarks.compilers.hlo import Instruction, Module
from posattn_jax.benchmarks.shapes import THRESHOLD
from posattn_jax.benchmarks.timing import one_pass
from posattn_jax.ops.attention import relative_attention
from posattn_jax.ops.attention.cuda import library, program
from posattn_jax.ops.attention.problem import Problem

KERNELS = ("forward", "backward", "backward_keys")  # in the order of `Plan.shared`
XLA_PTX = "*.jit_*.ptx"


def attention(case: Case) -> tuple[Callable, tuple[dict[str, Any], Any]]:
    """A function (arrays, cotangent) -> results, with sigma traced within a static bound; and its arguments."""
    arrays = {name: jax.ShapeDtypeStruct(shape, case.dtype) for name, shape in case.shapes.items()}
    arrays["sigma"] = jax.ShapeDtypeStruct((len(case.point.half),), "float32")
    fixed = dict(_fixed(case), implementation=case.implementation)
    return one_pass(lambda arrays: relative_attention(**arrays, **fixed), case.backward), (arrays, arrays["query"])


def _fixed(case: Case) -> dict[str, Any]:
    point = case.point
    return {"grid_shape": point.grid_shape, "threshold": THRESHOLD, "span_bound": point.half}


def kernels(case: Case) -> list[dict[str, Any]]:
    """The figures of our kernels, which a program of implementation "fused" launches."""
    _, (arrays, _) = attention(case)
    capability, plans = ".".join(map(str, GPUS[case.target].capability)), []
    device = program.Device(capability)
    jax.eval_shape(lambda arrays: plans.append(program.plan_of(Problem(**arrays, **_fixed(case)), device)), arrays)
    code = sass.disassembled(library.compile_program(plans[0].defines, capability))
    names = KERNELS if case.backward else KERNELS[:1]
    return [
        {"name": name, **code[name]._asdict(), "shared_bytes": shared}
        for name, shared in zip(names, plans[0].shared, strict=False)
    ]


def compile_for(gpu: str, function: Callable, arguments: tuple, folder: pathlib.Path) -> Any:
    """The compiled program; its PTX is written to `folder`.

    Call it once per process, because the compilers read their settings only when they start.
    """
    os.environ["XLA_FLAGS"] = f"--xla_dump_to={folder} --xla_dump_hlo_as_text"
    described = {"platform": "cuda", "target_config": GPUS[gpu].description, "topology": "1x1x1"}
    device = get_topology_desc(**described).devices[0]
    there = jax.sharding.SingleDeviceSharding(device)
    arguments = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=there), arguments)
    with jax.default_device(device):  # implementations look at this
        return jax.jit(function).lower(*arguments).compile()


def warp_instructions(folder: pathlib.Path) -> Callable[[Instruction], float | None]:
    """A function from a program's instruction to the instructions that its kernel's warps run; None without a kernel.

    Loops inside a kernel count once.
    """
    (path,) = folder.glob("*.thunk_sequence.txt")
    threads = {
        name: math.prod(int(size) for size in f"{blocks},{each}".split(","))
        for name, blocks, each in re.findall(r"\] (\S+) grid: \[([\d, ]+)\] threads: \[([\d, ]+)\]", path.read_text())
    }
    codes: dict[str, sass.Code] = {}
    for path in folder.glob(XLA_PTX):
        codes |= sass.assembled(path.read_text())

    def of(instruction: Instruction) -> float | None:
        name = instruction.name.replace(".", "_").replace("-", "_")
        return -(-threads[name] // 32) * codes[name].instructions if name in threads else None

    return of


def xla_figures(folder: pathlib.Path, text: str) -> dict[str, float]:
    """The kernels that XLA itself launches, the instructions that their warps run, and its calls of libraries.

    Loops of programs count as many times as they iterate.
    """
    cost = warp_instructions(folder)
    figures = {"launches": 0, "warp_instructions": 0.0, "library_calls": 0}
    for instruction, times in Module(text).runs(lambda _: 1.0):
        figures["library_calls"] += times * ("__cublas$" in instruction.text)
        instructions = cost(instruction)
        if instructions is not None:
            figures["launches"] += times
            figures["warp_instructions"] += times * instructions
    return figures


def main(argv: list[str]) -> int:
    """Prints {"kernels": ours, "xla": the rest, "temp_mib": memory besides arguments and results}.

    "xla" is there only if XLA writes its PTX, which it does with jax 0.10 but not with 0.12.
    """
    case = Case(*json.loads(argv[1]))
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        compiled = compile_for(case.target, *attention(case), folder)
        figures: dict[str, Any] = {
            "kernels": kernels(case) if case.implementation == "fused" else [],
            "temp_mib": compiled.memory_analysis().temp_size_in_bytes / 2**20,
        }
        if any(folder.glob(XLA_PTX)):
            figures["xla"] = xla_figures(folder, compiled.as_text())
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
