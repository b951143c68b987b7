"""An update of `cifar2d_span`, compiled for devices that are not there: its memory, sums over devices, and its parts.

  python -m benchmarks.compilers.training_step v5e:2x2 --variant= --no-parts
  python -m benchmarks.compilers.training_step v6e:2x2 [--variant=quick] [--sigma=.3] ... [--out=FILE.json]
  python -m benchmarks.compilers.training_step h200

The parts are of a TPU cycles by libtpu's simulator; of a GPU instructions that the warps of XLA's kernels run, where a
loop inside a kernel counts once. Needs the extras train, tpu-aot and gpu-aot. Spans have static bounds, which follow
sigma: the simulator cannot follow loops of run-time length. It aborts on v5e, and on grids larger than 8 x 8 (--variant
quick): --no-parts leaves it out. On several devices attention has no scopes, and most of it counts as the rest. --out
keeps a row for each case.
"""

import argparse
import os
import pathlib
import re
import sys
import tempfile
from importlib import metadata
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.topologies import get_topology_desc
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from benchmarks.compilers import gpu_program, tpu_program
from benchmarks.compilers.compiled import OF_ALL
from benchmarks.compilers.gpus import GPUS
from benchmarks.compilers.halo import collective_bytes
from benchmarks.compilers.hlo import Module
from configs import cifar2d_span
from posattn_jax.benchmarks.parts import PARTS, REST, part_of
from posattn_jax.benchmarks.table import markdown, number
from posattn_jax.config import experiment
from posattn_jax.nn.sharding import EXAMPLE_AXES
from posattn_jax.system.files import read_json, write_json
from posattn_jax.train.program import Program, SpanBounds
from posattn_jax.train.seed_map import SeedData
from posattn_jax.train.sharding import AXES
from posattn_jax.train.step import init_params

CASE = ("target", "variant", "sigma", "dtype")
GRIDS = {"": "32x32", "half": "16x16", "quick": "8x8"}  # of the variants


def compiled(variant: str, sigma: float, dtype: str, devices: list[Any]) -> Any:
    """The program of an update on these devices, each with its share of the batch."""
    config = cifar2d_span.get_config(variant)
    config.model.dtype = dtype
    config.model.block.attention.span.initial_sigma = sigma
    config.train.bounded_spans = "yes"
    data: Any = experiment.data_set(config)
    source = data.random(config.train.batch_size * config.train.accumulation_steps)
    task, optimizer, _, settings = experiment.prepare(config, source)
    bounds = SpanBounds(task, init_params(task, jax.random.key(0))).value
    mesh = Mesh(np.asarray(devices).reshape(-1, 1, 1, 1), AXES, axis_types=(AxisType.Auto,) * len(AXES))
    program = Program(task, optimizer, [SeedData(0, source, source)], mesh, settings)
    there = NamedSharding(mesh, PartitionSpec(None, None, EXAMPLE_AXES))
    batch = {
        name: jax.ShapeDtypeStruct((1, *_cut(array.shape, program.micro_batches[0])), array.dtype, sharding=there)
        for name, array in source.batch(np.arange(len(source))).items()
    }
    count = jax.ShapeDtypeStruct((), jnp.int32, sharding=NamedSharding(mesh, PartitionSpec()))
    with jax.set_mesh(mesh), jax.default_device(devices[0]):  # what implementations go by
        return program.updates(bounds).lower(program.abstract, batch, count, None).compile()


def _cut(shape, count):
    return count, shape[0] // count, *shape[1:]


def by_part(module: Module, cost) -> dict[str, float]:
    """The cost of the instructions that run, by the part of the model that they were traced in."""
    found = dict.fromkeys((*PARTS, REST), 0.0)
    for instruction, times in module.runs(lambda instruction: cost(instruction) or 0.0):
        scope = re.search(r'op_name="([^"]*)"', instruction.text)
        found[part_of(scope[1] if scope else "")] += times * (cost(instruction) or 0.0)
    return found


def summed(module: Module, num_devices: int) -> tuple[int, float]:
    """How many sums over devices an update has, and the MiB that a device sends for them."""
    sums = [(each, times) for each, times in module.runs(lambda _: 1.0) if each.operation.startswith("all-reduce")]
    sent = sum(times * collective_bytes(f"= {each.text}", num_devices)["summed"] for each, times in sums)
    return sum(times for _, times in sums), sent / 2**20


def measure(target: str, variant: str, sigma: float, dtype: str, with_parts: bool) -> dict[str, Any]:
    """Of each device memory in MiB, sums over devices, and cycles or instructions by part."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if target in GPUS:
            os.environ["XLA_FLAGS"] = f"--xla_dump_to={folder} --xla_dump_hlo_as_text"
            described = {"platform": "cuda", "target_config": GPUS[target].description, "topology": "1x1x1"}
        else:
            described = {"platform": "tpu", "topology_name": target}
            if with_parts:
                os.environ["LIBTPU_INIT_ARGS"] = f"--xla_jf_dump_static_llo_profile_to={folder}"
        devices = get_topology_desc(**described).devices
        program = compiled(variant, sigma, dtype, devices)
        memory, module = program.memory_analysis(), Module(program.as_text())
        sums, sent = summed(module, len(devices))
        figures = {"argument_mib": memory.argument_size_in_bytes / 2**20, "temp_mib": memory.temp_size_in_bytes / 2**20}
        figures |= {"sums": sums, "summed_mib": sent, "parts": {}}
        if with_parts:
            cost = gpu_program.warp_instructions(folder) if target in GPUS else tpu_program.cycles
            figures["parts"] = by_part(module, cost)
        return figures


def table(rows: list[dict[str, Any]]) -> str:
    """A row for each case; parts are shares of their sum."""
    head = ["target", "grid", "sigma", "dtype", "state and batch MiB", "temporary MiB", "sums", "their MiB", "in all"]
    lines = [[*head, *PARTS, REST]]
    for row in rows:
        total = sum(row["parts"].values())
        unit = "M warp instructions" if row["target"] in GPUS else "M cycles"
        figures = [number(row[name]) for name in ("argument_mib", "temp_mib", "sums", "summed_mib")]
        lines.append([row["target"], GRIDS[row["variant"]], f"{row['sigma']:g}", row["dtype"], *figures])
        lines[-1] += [f"{number(total / 1e6)} {unit}" if total else "-"]
        lines[-1] += [f"{100 * row['parts'][part] / total:.0f} %" if total else "-" for part in (*PARTS, REST)]
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("jax", "libtpu", "jax-cuda12-plugin"))
    return f"{markdown(lines)}\n\nOf each device. {versions}.\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", help=f"a TPU topology, such as v6e:2x2, or one of {', '.join(GPUS)}")
    parser.add_argument("--variant", default="quick", choices=list(GRIDS))
    parser.add_argument("--sigma", type=float, default=0.3)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--parts", default=True, action=argparse.BooleanOptionalAction)
    parser.add_argument("--out", type=pathlib.Path)
    asked = parser.parse_args()
    if asked.target not in GPUS and not re.fullmatch(r"v\d\w*:\d+x\d+(x\d+)?", asked.target):
        parser.error(f"target {asked.target}: expected a topology, such as v6e:2x2, or one of {', '.join(GPUS)}")
    needed = OF_ALL | tpu_program.ENVIRONMENT
    if not needed.items() <= os.environ.items():  # jax has read them already
        again = [sys.executable, "-m", "benchmarks.compilers.training_step", *sys.argv[1:]]
        os.execve(sys.executable, again, os.environ | needed)
    case = {name: getattr(asked, name) for name in CASE}
    rows = (asked.out and read_json(asked.out)) or []
    rows = [row for row in rows if {name: row[name] for name in CASE} != case] + [
        case | measure(**case, with_parts=asked.parts)
    ]
    if asked.out:
        write_json(asked.out, rows)
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
