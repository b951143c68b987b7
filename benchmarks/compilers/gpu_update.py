"""The kernels that a GPU launches in one update of the span paper's treatments, counted without a GPU.

  python -m benchmarks.compilers.gpu_update [--target=h200] [--treatments=span_2d] [--merged=no] [--out=FILE.json]

Needs no GPU: pip install posattn_jax[gpu-aot]. The update is that of configs/cifar2d_span.py: 2 x 20 images of 32 x 32,
6 blocks, float32, attention by "fused". Launches are counted in the program that XLA has compiled, by the part of the
model that they were traced in; of a choice at run time, those of the branch with the most.
"""

import collections
import os
import pathlib
import sys
from typing import Any

import jax
from absl import flags
from jax.experimental.topologies import get_topology_desc

from benchmarks.compilers.gpus import GPUS
from benchmarks.compilers.hlo import Module
from configs.lib import common
from posattn_jax.benchmarks.parts import PARTS, REST, parts_of
from posattn_jax.benchmarks.table import markdown
from posattn_jax.config import experiment
from posattn_jax.config.parts import build, change, set_all
from posattn_jax.system import command_line
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import write_json
from posattn_jax.train.step import init_state, make_train_step

SIZE, CHANNELS, CLASSES = 32, 3, 10
# Instructions of a compiled program that launch nothing.
FREE = {"parameter", "get-tuple-element", "tuple", "constant", "bitcast", "after-all", "partition-id"}
HEADS = ["treatment", "batches", "launches", "calls of our kernels", *PARTS, REST, "temporary MiB"]


def update_of(treatment: str, is_merged: bool, device: Any) -> tuple[Any, tuple[Any, Any]]:
    """The function of an update, and the shapes of its state and batch on a device."""
    fields = {each.name: each.fields for each in common.span_paper_sweep().treatments}[treatment]
    config = set_all(change(common.get_config(), fields), implementation="fused")
    grid_shape = (SIZE**2,) if config.data.layout == "1d" else (SIZE, SIZE)
    knows = {"input_shape": grid_shape, "num_channels": CHANNELS, "num_classes": CLASSES}
    task, steps = experiment.task_of(config, knows, grid_shape), config.train.accumulation_steps
    optimizer = build(config.optimizer, "optimizer").make(1, 1)
    shape = (1, steps * config.train.batch_size) if is_merged else (steps, config.train.batch_size)
    batch = {
        "inputs": jax.ShapeDtypeStruct((*shape, SIZE**2, CHANNELS), "float32"),
        "labels": jax.ShapeDtypeStruct(shape, "int32"),
    }
    state = jax.eval_shape(lambda: init_state(task, optimizer, jax.random.key(0)))
    there = jax.sharding.SingleDeviceSharding(device)
    kinds = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=there), (state, batch))
    return make_train_step(task, optimizer, steps, is_merged=is_merged), kinds


def launches(text: str) -> dict[str, int]:
    """The launches of a compiled program, by part of the model, "all" and "ours"."""
    parts, found = parts_of(text), collections.Counter()
    for instruction, times in Module(text).runs(lambda instruction: instruction.operation not in FREE):
        if instruction.operation not in FREE:
            found[parts.get(instruction.name, REST)] += times
            found["ours"] += times * ("posattn" in instruction.text and instruction.operation == "custom-call")
    return {"all": sum(found[part] for part in (*PARTS, REST)), **found}


def main(argv: list[str]) -> int:
    """Returns the exit code."""
    values, treatments = flags.FlagValues(), [each.name for each in common.span_paper_sweep().treatments]
    flags.DEFINE_enum("target", "h200", list(GPUS), "The GPU.", flag_values=values)
    flags.DEFINE_list("treatments", treatments, f"Some of {', '.join(treatments)}.", flag_values=values)
    flags.DEFINE_list("merged", ["no", "yes"], "Micro-batches one by one (no), or as one (yes).", flag_values=values)
    flags.DEFINE_string("out", None, "File for the figures.", flag_values=values)
    options = command_line.parse(values, argv, str(__doc__))
    for name, allowed in (("treatments", treatments), ("merged", ["no", "yes"])):
        for given in getattr(options, name):
            if given not in allowed:
                raise InputError(f"--{name}={given}: expected some of {', '.join(allowed)}")
    described = {"platform": "cuda", "target_config": GPUS[options.target].description, "topology": "1x1x1"}
    device, rows = get_topology_desc(**described).devices[0], []
    for treatment in options.treatments:
        for merged in options.merged:
            with jax.default_device(device):  # implementations look at this
                update, kinds = update_of(treatment, merged == "yes", device)
                compiled: Any = jax.jit(update, donate_argnums=0).lower(*kinds).compile()
            row = {"treatment": treatment, "merged": merged, "launches": launches(compiled.as_text())}
            rows.append(row | {"temp_mib": round(compiled.memory_analysis().temp_size_in_bytes / 2**20)})
            print(rows[-1], file=sys.stderr, flush=True)
            if options.out is not None:
                write_json(pathlib.Path(options.out), {"target": options.target, "jax": jax.__version__, "rows": rows})
    print(markdown([HEADS, *map(cells, rows)]))
    return 0


def cells(row: dict[str, Any]) -> list[str]:
    """A row of the table."""
    counted = row["launches"]
    batches = "one" if row["merged"] == "yes" else "two"
    figures = [counted["all"], *(counted.get(name, 0) for name in ("ours", *PARTS, REST)), row["temp_mib"]]
    return [row["treatment"], batches, *map(str, figures)]


if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"  # no driver is looked for
    sys.exit(command_line.run(main, sys.argv))
