"""An update of `cifar2d_span`, compiled for devices that are not there: its memory, and which part it goes into.

  python -m benchmarks.training_step v6e:2x2 [--variant=quick] [--sigma=.3] [--dtype=bfloat16] [--out=FILE.json]
  python -m benchmarks.training_step h200 ...

Of a TPU topology, cycles by libtpu's simulator; of a GPU, the instructions that the warps of XLA's kernels run, where a
loop inside a kernel counts once. Needs the extras train, tpu-aot and gpu-aot. Spans have static bounds, which follow
sigma: the simulator cannot follow loops of run-time length. It aborts on v5e, and on grids larger than 8 x 8 (--variant
quick). On several devices attention has lost its scopes, and most of it counts as the rest. --out keeps a row for each
case.
"""

import argparse
import os
import pathlib
import re
import sys
import tempfile
from importlib import metadata
from typing import Any

from posattn_jax.benchmarks import gpu_program, tpu_program
from posattn_jax.benchmarks.compiled import OF_ALL
from posattn_jax.benchmarks.gpus import GPUS
from posattn_jax.benchmarks.hlo import Module
from posattn_jax.benchmarks.parts import PARTS, REST, part_of
from posattn_jax.benchmarks.table import markdown, number
from posattn_jax.system.files import read_json, write_json

CASE = ("target", "variant", "sigma", "dtype")


def compiled(variant: str, sigma: float, dtype: str, devices: list[Any]) -> Any:
    """The program of an update on these devices, each with its share of the batch."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

    from configs import cifar2d_span
    from posattn_jax.build import experiment
    from posattn_jax.nn.examples import EXAMPLE_AXES
    from posattn_jax.train.bounds import SpanBounds
    from posattn_jax.train.program import Program
    from posattn_jax.train.seed_map import SeedData
    from posattn_jax.train.sharding import AXES
    from posattn_jax.train.step import init_params

    config = cifar2d_span.get_config(variant)
    config.model.dtype = dtype
    config.model.block.attention.span.initial_sigma = sigma
    config.train.bounded_spans = "yes"
    source = experiment.data_set(config).made(config.train.batch_size * config.train.accumulation_steps)
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
    with jax.set_mesh(mesh), jax.default_device(devices[0]):  # what layouts go by
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


def measure(target: str, variant: str, sigma: float, dtype: str) -> dict[str, Any]:
    """Memory of each device in MiB, and cycles or instructions by part."""
    from jax.experimental.topologies import get_topology_desc

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if target in GPUS:
            os.environ["XLA_FLAGS"] = f"--xla_dump_to={folder} --xla_dump_hlo_as_text"
            described = {"platform": "cuda", "target_config": GPUS[target].description, "topology": "1x1x1"}
        else:
            os.environ["LIBTPU_INIT_ARGS"] = f"--xla_jf_dump_static_llo_profile_to={folder}"
            described = {"platform": "tpu", "topology_name": target}
        program = compiled(variant, sigma, dtype, get_topology_desc(**described).devices)
        memory = program.memory_analysis()
        mib = {kind: getattr(memory, f"{kind}_size_in_bytes") / 2**20 for kind in ("argument", "temp", "alias")}
        module = Module(program.as_text())
        cost = gpu_program.warp_instructions(folder) if target in GPUS else tpu_program.cycles
        return {"mib": mib, "parts": by_part(module, cost)}


def table(rows: list[dict[str, Any]]) -> str:
    """A row for each case; parts are shares of their sum."""
    head = ["target", "grid", "sigma", "dtype", "state and batch MiB", "temporary MiB", "million cycles, instructions"]
    lines = [[*head, *PARTS, REST]]
    for row in rows:
        total = sum(row["parts"].values())
        unit = "warp instructions" if row["target"] in GPUS else "cycles"
        shares = [f"{100 * part / total:.0f} %" for part in row["parts"].values()]
        grid = {"": "32x32", "half": "16x16", "quick": "8x8"}[row["variant"]]
        mib = (number(row["mib"]["argument"]), number(row["mib"]["temp"]))
        lines.append([row["target"], grid, f"{row['sigma']:g}", row["dtype"], *mib])
        lines[-1] += [f"{number(total / 1e6)} {unit}", *shares]
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("jax", "libtpu", "jax-cuda12-plugin"))
    return f"{markdown(lines)}\n\nOf each device. {versions}.\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", help=f"a TPU topology, such as v6e:2x2, or one of {', '.join(GPUS)}")
    parser.add_argument("--variant", default="", choices=["", "half", "quick"])
    parser.add_argument("--sigma", type=float, default=0.3)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--out", type=pathlib.Path)
    asked = parser.parse_args()
    needed = OF_ALL | tpu_program.ENVIRONMENT
    if not needed.items() <= os.environ.items():  # jax has read them already
        os.execve(
            sys.executable, [sys.executable, "-m", "benchmarks.training_step", *sys.argv[1:]], os.environ | needed
        )
    case = {name: getattr(asked, name) for name in CASE}
    rows = (asked.out and read_json(asked.out)) or []
    rows = [row for row in rows if {name: row[name] for name in CASE} != case] + [case | measure(**case)]
    if asked.out:
        write_json(asked.out, rows)
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
