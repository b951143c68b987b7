"""The figures of a kernel that NVIDIA's tools assemble: registers, local memory, and its inner loop."""

import collections
import importlib.util
import pathlib
import re
import subprocess
import tempfile
from typing import Any, NamedTuple

# Products on tensor cores, by the sizes in their names, such as HGMMA.64x64x16.F32.BF16 and HMMA.16816.F32.BF16.
_PRODUCT = re.compile(r"^(?:HGMMA\.(\d+)x(\d+)x(\d+)|HMMA\.(16)(8)(16|8)|HMMA\.(16)(8)(4))")
_LABEL = re.compile(r"^\.(L_x_\d+):")
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?(\S+)(.*)$")
_COUNTED = ("MUFU", "FMUL", "FFMA", "FADD", "LDS", "STS", "LDL", "STL", "BAR")


class Code(NamedTuple):
    """The figures of one kernel.

    Attributes:
      registers: registers per thread.
      local_bytes: a thread's bytes in local memory: what registers have no room for.
      instructions: the number of all instructions.
      loop: the number of instructions in the inner loop; 0 without a loop.
      loop_flops: the FLOPs of its products, per warp, or per group of four warps that multiply together.
      loop_counts: the number of its instructions of some kinds.
    """

    registers: int
    local_bytes: int
    instructions: int
    loop: int
    loop_flops: int
    loop_counts: dict[str, int]


def tool(name: str) -> pathlib.Path:
    """The path of a program that comes with the extra "gpu-aot"."""
    spec = importlib.util.find_spec("nvidia")
    folders = [] if spec is None else spec.submodule_search_locations or []
    found = [path for folder in folders for path in sorted(pathlib.Path(folder).glob(f"cu[0-9]*/bin/{name}"))]
    if not found:
        raise FileNotFoundError(f"{name} is missing: pip install posattn_jax[gpu-aot]")
    return found[-1]


def assembled(ptx: str) -> dict[str, Code]:
    """The figures of each kernel in a PTX text."""
    target = re.search(r"^\.target (sm_\w+)", ptx, re.MULTILINE)
    if target is None:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        source, binary = pathlib.Path(folder, "kernel.ptx"), pathlib.Path(folder, "kernel.cubin")
        source.write_text(ptx)
        command = [tool("ptxas"), f"--gpu-name={target[1]}", source, f"--output-file={binary}"]
        subprocess.run(command, capture_output=True, check=True)
        return disassembled(binary.read_bytes())


def disassembled(cubin: bytes) -> dict[str, Code]:
    """The figures of each kernel of a binary."""
    with tempfile.TemporaryDirectory() as folder:
        binary = pathlib.Path(folder, "kernel.cubin")
        binary.write_bytes(cubin)
        listing = subprocess.run([tool("nvdisasm"), binary], capture_output=True, text=True, check=True).stdout
    registers, local = (noted(listing, name) for name in ("REGCOUNT", "FRAME_SIZE"))
    return {
        name: Code(registers[name], local.get(name, 0), sum(map(_is_instruction, lines)), *inner_loop(lines))
        for name, lines in by_kernel(listing).items()
        if name in registers
    }


def noted(listing: str, name: str) -> dict[str, int]:
    """What the output of nvdisasm notes of each kernel by a name such as REGCOUNT."""
    note = rf"EIATTR_{name}$.*?index@\((\S+)\)$.*?\.word\s+0x([0-9a-f]+)$"
    return {kernel: int(number, 16) for kernel, number in re.findall(note, listing, re.DOTALL | re.MULTILINE)}


def _is_instruction(line: str) -> bool:
    return _INSTRUCTION.match(line) is not None


def by_kernel(listing: str) -> dict[str, list[str]]:
    """The lines of each kernel, from the output of nvdisasm."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in listing.splitlines():
        if line.startswith(".text."):
            lines = found.setdefault(line.removeprefix(".text.").rstrip(":"), [])
        lines.append(line)
    return found


def inner_loop(lines: list[str]) -> tuple[int, int, dict[str, int]]:
    """The figures `loop`, `loop_flops` and `loop_counts` of `Code`.

    They are those of the loop with the most products, and of these the shortest. In a kernel without products they are
    those of the longest loop.
    """
    names, labels, loops = [], {}, []
    for line in lines:
        if label := _LABEL.match(line):
            labels[label[1]] = len(names)
        elif instruction := _INSTRUCTION.match(line):
            target = re.search(r"\.(L_x_\d+)", instruction[2])
            if instruction[1].startswith("BRA") and target is not None and target[1] in labels:
                loops.append((labels[target[1]], len(names) + 1))
            names.append(instruction[1])
    if not loops:
        return 0, 0, {}
    products = {loop: sum(map(flops, names[slice(*loop)])) for loop in loops}
    most = max(products.values())
    chosen = [loop for loop in loops if products[loop] == most]
    begin, end = (min if most else max)(chosen, key=lambda loop: loop[1] - loop[0])
    counts: Any = collections.Counter(name.partition(".")[0] for name in names[begin:end])
    return end - begin, most, {name: counts[name] for name in _COUNTED if counts[name]}


def flops(instruction: str) -> int:
    """The FLOPs of a product on tensor cores; 0 for other instructions."""
    found = _PRODUCT.match(instruction)
    if found is None:
        return 0
    m, n, k = (int(size) for size in found.groups() if size is not None)
    return 2 * m * n * k
