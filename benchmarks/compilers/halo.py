"""What devices send each other, and the memory of each, where a grid is cut over them: read from compiled programs.

  python -m benchmarks.compilers.halo [--shapes=3d128x32x32] [--halves=1,2,4] [--devices=1,2,4,8]
      [--batch=1 --heads=4 --head_dim=16] [--out=FOLDER]

Nothing is run, and on a CPU the devices are virtual: the figures are those of the compiler. "sent" are the bytes of the
busiest device, of keys and values forward and of their gradients backward, "all-gather" what gathering would send, and
"summed" the gradients that all devices add up. Memory is of a device, arguments and results included; "of one" is the
memory on one device over that. With --out also `results.json`, after every program. Exit codes: 0 done, 2 wrong input,
130 stopped by Ctrl-C.
"""

import contextlib
import itertools
import math
import re
import sys
from typing import Any

import jax
import jax.numpy as jnp
from absl import flags
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from posattn_jax.benchmarks.command import describe_machine
from posattn_jax.benchmarks.shapes import SHAPE_HELP, THRESHOLD, parse_shape
from posattn_jax.benchmarks.table import PASSES
from posattn_jax.ops.attention import exchange_bytes, halo_attention
from posattn_jax.system import command_line
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import write_json

HEADER = "devices  hops   sent MiB  all-gather MiB  summed MiB  memory MiB  of one"


def define_flags() -> flags.FlagValues:
    """The flags, unparsed, apart from those of any other command."""
    values = flags.FlagValues()
    own: dict[str, Any] = {"flag_values": values}
    flags.DEFINE_list("shapes", ["3d128x32x32"], f"Grids: {SHAPE_HELP}.", **own)
    flags.DEFINE_list("halves", ["1", "2", "4"], "Half-spans in positions, the same in every dimension.", **own)
    flags.DEFINE_list("devices", ["1", "2", "4", "8"], "Numbers of devices.", **own)
    for name, default in (("batch", 1), ("heads", 4), ("head_dim", 16)):
        flags.DEFINE_integer(name, default, "A size of the arrays.", lower_bound=1, **own)
    flags.DEFINE_string("out", None, "The folder for results.json.", **own)
    return values


def compile_cut(
    grid_shape: tuple[int, ...], half: int, num_devices: int, sizes: tuple[int, int, int], backward: bool
) -> Any:
    """Attention compiled for a grid cut over some devices; `backward`: with the gradients of every array.

    Args:
      half: the half-span in every dimension.
      sizes: b, h and d.
    """
    b, h, d = sizes
    axis = (AxisType.Auto,)
    mesh = jax.make_mesh((num_devices,), ("grid",), axis_types=axis, devices=jax.devices()[:num_devices])

    def array(*shape: int, cut: tuple[str | None, ...] = ()) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, PartitionSpec(*cut)))

    bound = tuple(min(half, size - 1) for size in grid_shape)
    features = array(b, math.prod(grid_shape), h, d, cut=(None, "grid"))
    arrays: dict[str, Any] = dict.fromkeys(("query", "key", "value"), features)
    arrays["relative_encoding"] = array(*(2 * reach + 1 for reach in bound), h, d)
    arrays |= {"content_bias": array(h, d), "position_bias": array(h, d), "sigma": array(len(grid_shape))}

    def forward(arrays, _):
        return halo_attention(**arrays, grid_shape=grid_shape, span_bound=bound, threshold=THRESHOLD)

    def forward_backward(arrays, cotangent):
        outputs, pull_back = jax.vjp(lambda arrays: forward(arrays, None), arrays)
        return outputs, pull_back(cotangent)

    with jax.set_mesh(mesh):
        return jax.jit(forward_backward if backward else forward).lower(arrays, features).compile()


def collective_bytes(program: str, num_devices: int) -> dict[str, int]:
    """The bytes that the busiest device sends in a compiled program: "exchanged", and "summed" by all-reduces.

    A permutation sends along its pairs; in an all-gather a device sends its part to all others, in a reduce-scatter to
    each its own, and in an all-reduce, as in a ring, almost everything twice. What is in a loop counts once.
    """
    permuted, exchanged, summed = [0] * num_devices, 0.0, 0.0
    others = num_devices - 1
    for shapes, kind, rest in re.findall(r"= (.*?) ([a-z-]+?)(?:-start)?\((.*)", program):
        if kind == "collective-permute":
            size = _num_bytes(shapes, first=True)
            for source in re.findall(r"[{,]{(\d+),\d+}", rest):
                permuted[int(source)] += size
        elif kind == "all-gather":
            exchanged += _num_bytes(shapes) * others / num_devices
        elif kind == "reduce-scatter":
            exchanged += _num_bytes(shapes) * others
        elif kind == "all-reduce":
            summed += 2 * _num_bytes(shapes) * others / num_devices
    return {"exchanged": max(permuted) + round(exchanged), "summed": round(summed)}


def _num_bytes(shapes: str, first: bool = False) -> int:
    """Of an array such as "f32[2,3]{1,0}", or of a tuple of them, or of the first of these."""
    arrays = re.findall(r"([a-z]+)(\d*)\w*\[([\d,]*)\]", shapes)[: 1 if first else None]
    sizes = (
        int(bits or 8) // 8 * math.prod(int(size) for size in shape.split(",") if size) for _, bits, shape in arrays
    )
    return sum(sizes)


def measure(
    grid_shape: tuple[int, ...], half: int, num_devices: int, sizes: tuple[int, int, int], backward: bool
) -> dict[str, Any]:
    """One compiled program: arguments as of `compile_cut`."""
    compiled = compile_cut(grid_shape, half, num_devices, sizes, backward)
    memory = compiled.memory_analysis()
    b, h, d = sizes
    expected = exchange_bytes(grid_shape, [half] * len(grid_shape), num_devices, batch_size=b, num_heads=h, head_dim=d)
    parts: dict[str, int] = {name: getattr(memory, f"{name}_size_in_bytes") for name in ("argument", "output", "temp")}
    return {
        "grid_shape": list(grid_shape),
        "half": half,
        "devices": num_devices,
        "hops": expected["hops"],
        "sent_bytes": collective_bytes(compiled.as_text(), num_devices),
        "all_gather_bytes": expected["all_gather"] * (2 if backward else 1),
        "memory_bytes": parts | {"all": sum(parts.values())},
    }


def format_row(row: dict[str, Any]) -> str:
    """A line of the table."""
    sent, mib = row["sent_bytes"], 2**20
    line = f"{row['devices']:7d} {row['hops']:5d} {sent['exchanged'] / mib:10.3f} {row['all_gather_bytes'] / mib:15.3f}"
    return f"{line} {sent['summed'] / mib:11.3f} {row['memory_bytes']['all'] / mib:11.1f} {row['of_one']:7.2f}"


def main(argv: list[str]) -> int:
    """Compiles and reads every program; returns the exit code."""
    options = command_line.parse(define_flags(), argv, str(__doc__))
    shapes = [parse_shape(name) for name in options.shapes]
    halves = command_line.numbers("--halves", options.halves, least=1)
    devices = sorted({1, *command_line.numbers("--devices", options.devices, least=1)})
    out = command_line.make_folder(options.out)
    with contextlib.suppress(RuntimeError):  # where the devices are there already
        jax.config.update("jax_num_cpu_devices", devices[-1])
    if devices[-1] > jax.device_count():
        raise InputError(f"--devices={devices[-1]}: there are {jax.device_count()}")
    sizes = (options.batch, options.heads, options.head_dim)
    asked = {name: value for name, value in options.flag_values_dict().items() if name != "out"}
    results = {"options": asked, **describe_machine(), "programs": []}
    for grid_shape, half, (name, title) in itertools.product(shapes, halves, PASSES.items()):
        print(f"grid {' x '.join(map(str, grid_shape))}, half-span {half}, {title}\n{HEADER}", flush=True)
        of_one = 0
        for num_devices in devices:
            row: dict[str, Any] = {"pass": name} | measure(
                grid_shape, half, num_devices, sizes, name == "forward_backward"
            )
            of_one = of_one or row["memory_bytes"]["all"]
            results["programs"].append(row | {"of_one": of_one / row["memory_bytes"]["all"]})
            print(format_row(results["programs"][-1]), flush=True)
            if out is not None:
                write_json(out / "results.json", results)
        print(flush=True)
    return 0


def run(argv: list[str]) -> int:
    """`main`, with wrong input told in one line; returns the exit code."""
    return command_line.run(main, argv)


if __name__ == "__main__":
    sys.exit(run(sys.argv))
