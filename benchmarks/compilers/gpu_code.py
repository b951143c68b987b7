"""The machine code of attention for GPUs, compiled without a GPU by XLA and NVIDIA's compilers.

  python -m benchmarks.compilers.gpu_code [--targets=h200,a100] [--implementations=fused,tiled,dense] [--shapes=2d64:8]
      [--head_dims=64] [--passes=forward,backward] [--seconds=900] [--out=FILE.json] [--into=docs/compiled_gpus.md]

Needs no GPU: pip install posattn_jax[gpu-aot]. The span is traced within a static bound, as in training. For the fused
kernels it shows registers, local memory, shared memory and the inner loop. For the code that XLA generates it shows
the number of kernel launches and of instructions that the warps run (XLA does not write these with jax 0.12). Products
are not autotuned, because that needs the device. With --out results are kept; a case is compiled again if its source or
a compiler has changed. Exit codes: 0 done, 2 wrong input or no compilers, 130 stopped by Ctrl-C.
"""

import sys
from collections.abc import Mapping
from typing import Any

from benchmarks.compilers import compiled, gpu_program
from benchmarks.compilers.compiled import PASSES, Case
from benchmarks.compilers.gpus import GPUS
from posattn_jax.benchmarks.table import markdown, number
from posattn_jax.system import command_line


def table(results: Mapping[Case, Mapping[str, Any]], versions: Mapping[str, str]) -> str:
    """A table with a row for each fused kernel, and one with a row for each program."""
    sizes = sorted({(case.batch, case.heads, case.dtype) for case in results})
    told = [
        kernels_table(results),
        programs_table(results),
        "; ".join(f"batch {batch}, {heads} heads, {dtype}" for batch, heads, dtype in sizes)
        + f". Compilers: {', '.join(f'{name} {version}' for name, version in versions.items())}. "
        "backward: forward with backward.",
        "\n".join(compiled.absences(results)),
    ]
    return "\n\n".join(part for part in told if part) + "\n"


def kernels_table(results: Mapping[Case, Mapping[str, Any]]) -> str:
    """Registers, local and shared memory, and the inner loop with the cycles that its products take on a core.

    A kernel that several programs have in common, such as that of both passes, is told once.
    """
    head = ["grid: half-span", "d", "GPU", "kernel", "registers", "local bytes", "shared KiB"]
    rows = [[*head, "loop: instructions", "tensor cycles", "of them"]]
    for case, figures in results.items():
        for code in figures.get("kernels", ()):
            counts = " ".join(f"{name} {count}" for name, count in code["loop_counts"].items())
            row = [f"{case.shape}: {case.half}", str(case.head_dim), case.target, code["name"]]
            row += [str(code["registers"]), str(code["local_bytes"]), number(code["shared_bytes"] / 1024)]
            row += [str(code["loop"]), number(tensor_cycles(case, code)), counts]
            if row not in rows:
                rows.append(row)
    return markdown(rows) if len(rows) > 1 else ""


def tensor_cycles(case: Case, code: Mapping[str, Any]) -> float:
    """The cycles of a core that the products of an inner loop take, if each of four warps runs the loop once."""
    return 4 * code["loop_flops"] / GPUS[case.target].product_flops


def programs_table(results: Mapping[Case, Mapping[str, Any]]) -> str:
    """The code that XLA generates for each program: all of "tiled" and "dense", and the code around fused kernels."""
    head = ["grid: half-span", "d", "GPU", "pass", "implementation", "our kernels", "launches by XLA"]
    rows = [[*head, "instructions a useful pair", "calls of libraries", "temporary MiB"]]
    for case, figures in results.items():
        if "xla" not in figures:
            continue
        xla, pairs = figures["xla"], case.batch * case.heads * case.point.pairs
        rows.append([f"{case.shape}: {case.half}", str(case.head_dim), case.target, PASSES[case.backward]])
        rows[-1] += [
            case.implementation,
            str(len(figures["kernels"])),
            str(xla["launches"]),
            number(32 * xla["warp_instructions"] / pairs),
        ]
        rows[-1] += [str(xla["library_calls"]), number(figures["temp_mib"])]
    return markdown(rows) if len(rows) > 1 else ""


INSTRUMENT = compiled.Instrument(
    program=gpu_program.__name__,
    parts=("gpu_program", "gpus", "sass"),
    targets=tuple(GPUS),
    implementations=compiled.IMPLEMENTATIONS,
    packages=("jax", "jax-cuda12-plugin", "nvidia-cuda-nvcc", "nvidia-cuda-nvdisasm", "nvidia-cuda-nvrtc"),
    table=table,
    mark="gpu_code",
    environment={"TF_CPP_MIN_LOG_LEVEL": "3"},
)


def main(argv: list[str]) -> int:
    """Returns the exit code."""
    values = compiled.define_flags(INSTRUMENT, shapes="2d64:8", seconds=900.0)
    values.set_default("batch", 8)
    values.set_default("heads", 8)
    return compiled.main(argv, INSTRUMENT, values, str(__doc__))


def run(argv: list[str]) -> int:
    """Runs `main`, and prints wrong input in one line; returns the exit code."""
    return command_line.run(main, argv)


if __name__ == "__main__":
    sys.exit(run(sys.argv))
