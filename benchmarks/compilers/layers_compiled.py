"""How long layers of fused attention take to compile for a GPU that is not there, with gradients.

  python -m benchmarks.compilers.layers_compiled LAYERS [--gpu=h200] [--shape=2d32] [--half=8] [--head_dim=8] ...

The layers follow each other, with 8 heads and a batch of 20. A process compiles once, because the compiler remembers
kernels. Needs the extra gpu-aot. Exit codes: 0 done, 2 wrong input, or the extra is missing.
"""

import argparse
import os
import sys
import time
from typing import Any

import jax
from jax.experimental.topologies import get_topology_desc

from benchmarks.compilers import gpu_program
from benchmarks.compilers.compiled import OF_ALL, Case
from benchmarks.compilers.gpus import GPUS
from posattn_jax.benchmarks.shapes import parse_shape
from posattn_jax.system.errors import InputError


def compiled(case: Case, layers: int) -> dict[str, float]:
    """The seconds that tracing, lowering and compiling take."""
    _, (arrays, cotangent) = gpu_program.attention(case)

    def gradients(arrays, cotangent):
        def total(arrays):
            query = arrays["query"]
            for _ in range(layers):
                attend, _ = gpu_program.attention(case)  # a function of its own, as each layer of a model has
                query = attend(arrays | {"query": query}, cotangent)
            return query.sum()

        return jax.grad(total)(arrays)

    described = {"platform": "cuda", "target_config": GPUS[case.target].description, "topology": "1x1x1"}
    device = get_topology_desc(**described).devices[0]
    there = jax.sharding.SingleDeviceSharding(device)
    given = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=there), (arrays, cotangent))
    took: dict[str, float] = {}
    result: Any = None
    with jax.default_device(device):
        for name, step in (
            ("trace", lambda _: jax.jit(gradients).trace(*given)),
            ("lower", lambda traced: traced.lower()),
            ("compile", lambda lowered: lowered.compile()),
        ):
            started = time.perf_counter()
            result = step(result)
            took[name] = time.perf_counter() - started
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layers", type=int)
    parser.add_argument("--gpu", default="h200", choices=list(GPUS))
    parser.add_argument("--shape", default="2d32")
    parser.add_argument("--half", type=int, default=8)
    parser.add_argument("--head_dim", type=int, default=8)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    options = parser.parse_args()
    if not OF_ALL.items() <= os.environ.items():  # jax has read them already
        again = [sys.executable, "-m", "benchmarks.compilers.layers_compiled", *sys.argv[1:]]
        os.execve(sys.executable, again, os.environ | OF_ALL)
    try:
        parse_shape(options.shape, "shape")
        get_topology_desc(platform="cuda", target_config=GPUS[options.gpu].description, topology="1x1x1")
    except InputError as error:
        parser.error(str(error))
    except NotImplementedError:
        parser.error("there is no compiler for GPUs: pip install posattn_jax[gpu-aot]")
    if options.layers < 1:
        parser.error(f"layers={options.layers}: expected at least 1")
    case = Case(options.gpu, "fused", options.shape, options.half, 20, 8, options.head_dim, options.dtype, False)
    print(*(f"{name} {seconds:.3g} s" for name, seconds in compiled(case, options.layers).items()), sep=", ")


if __name__ == "__main__":
    main()
