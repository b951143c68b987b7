"""Times attention with the kernels for GPUs, and cuDNN's attention of all pairs, which knows no positions.

  python -m benchmarks.gpu_kernels [--only=2d64] [--implementation=fused]

One line for each case: milliseconds forward and with backward, the median of five times `--calls` calls, and the
temporary memory with backward. Gradients are those of q, k, v, E, u, v, and of a sigma for each head.
"""

import argparse
import functools
import math
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posattn_jax import relative_attention
from posattn_jax.benchmarks.shapes import parse_shape
from posattn_jax.ops import grid

# The grid, half-span, batch, features a head and dtype; without a half-span there is no sigma.
CASES = (
    ("2d64", 8, 8, 64, "bfloat16"),
    ("2d64", 8, 8, 32, "bfloat16"),
    ("2d32", 8, 40, 64, "bfloat16"),
    ("2d128", 8, 2, 64, "bfloat16"),
    ("2d256", 8, 1, 64, "bfloat16"),
    ("3d32", 2, 1, 64, "bfloat16"),
    ("2d32", 4, 20, 8, "float32"),
    ("2d32", None, 20, 8, "float32"),
    ("1d65536", 512, 1, 64, "bfloat16"),
)
HEADS, THRESHOLD = 8, 0.1


def make_arrays(shape: tuple[int, ...], half: int | None, batch: int, features: int, dtype: str) -> dict[str, Any]:
    """Random arrays of `relative_attention`; sigma has the half-span."""
    of_tokens, relative = (batch, math.prod(shape), HEADS, features), grid.relative_shape(shape)
    sizes = dict.fromkeys(("query", "key", "value"), of_tokens) | {"relative_encoding": (*relative, HEADS, features)}
    sizes |= dict.fromkeys(("content_bias", "position_bias"), (HEADS, features))
    keys = jax.random.split(jax.random.key(0), len(sizes))
    arrays = {name: jax.random.normal(key, size, dtype) for key, (name, size) in zip(keys, sizes.items(), strict=True)}
    if half is not None:
        unit = math.sqrt(-2 * math.log(THRESHOLD)) * np.maximum(np.subtract(shape, 1), 1)
        arrays["sigma"] = jnp.asarray(np.tile((half - 0.5) / unit, (HEADS, 1)), jnp.float32)
    return arrays


def milliseconds(function: Callable, calls: int, *arguments: Any) -> float:
    """The median time of a call, when `calls` follow one another."""
    taken = []
    for run in range(6):  # the first warms up
        started = time.perf_counter()
        for _ in range(calls):
            results = function(*arguments)
        jax.block_until_ready(results)
        if run:
            taken.append(1e3 * (time.perf_counter() - started) / calls)
    return statistics.median(taken)


def measure(attend: Callable, arrays: dict[str, Any], calls: int) -> str:
    """A line of what attention with these arrays takes."""

    def with_backward(arrays):
        outputs, pull_back = jax.vjp(attend, arrays)
        return outputs, pull_back(outputs)

    compiled = jax.jit(with_backward).lower(arrays).compile()
    memory = compiled.memory_analysis().temp_size_in_bytes / 2**20
    forward = milliseconds(jax.jit(attend), calls, arrays)
    return f"{forward:.3f} / {milliseconds(compiled, calls, arrays):.3f} ms, {memory:.0f} MiB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose names have this in them")
    parser.add_argument("--implementation", default="fused", help="of relative_attention")
    parser.add_argument("--calls", type=int, default=20)
    options = parser.parse_args()
    if jax.default_backend() != "gpu":
        sys.exit("no GPU: JAX has none here")
    print(jax.devices()[0].device_kind, jax.__version__)
    for name, half, batch, features, dtype in CASES:
        case = f"{name}, half-span {half}, batch {batch}, {features} features, {dtype}"
        if options.only not in case:
            continue
        shape = parse_shape(name)
        arrays = make_arrays(shape, half, batch, features, dtype)
        fields = {"grid_shape": shape, "implementation": options.implementation, "threshold": THRESHOLD}
        bound = None if half is None else tuple(min(half, size - 1) for size in shape)
        attend = functools.partial(_attend, span_bound=bound, **fields)
        print(f"{case}: {measure(attend, arrays, options.calls)}", flush=True)
        if dtype == "bfloat16":
            content = {each: arrays[each] for each in ("query", "key", "value")}
            print(f"  cuDNN, all pairs: {measure(_cudnn, content, options.calls)}", flush=True)


def _attend(arrays, **fields):
    return relative_attention(**arrays, **fields)


def _cudnn(arrays):
    return jax.nn.dot_product_attention(*arrays.values(), implementation="cudnn")


if __name__ == "__main__":
    main()
