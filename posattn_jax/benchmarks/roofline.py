"""The roofline: how fast attention within a span could be, at the rates that this machine reaches in simpler programs.

With P pairs inside the spans, b batch, h heads, d features per head, N positions, R offsets and W of them in a span:

  seconds = b h P flops / (flops per second) + b h P exps / (exps per second) + bytes / (bytes per second)

  forward             flops = 6 d: content, position and value products, 2 d each
                      exps  = 1
                      bytes = query, key, value, outputs [b N h d] and the encoding [W h d]
  forward + backward  flops = 22 d: the forward's 6 d; content and position scores again 4 d, dP and d value 2 d each,
                              d query 4 d (by content and by position), d key and d encoding 2 d each
                      exps  = 2, the forward's and one of the recomputed softmax
                      bytes = the forward's; query, key, value, d outputs and the encoding once more; d query, d key,
                              d value [b N h d] and d encoding [R h d]

The three times are added, as if nothing overlapped. Biases, sigma and the statistics of the softmax are left out.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
from jax import lax

from posattn_jax.axes import Array
from posattn_jax.benchmarks.shapes import Point
from posattn_jax.benchmarks.timing import seconds
from posattn_jax.ops import grid

# The side of the matrices, and the number of elements for exp and for copying: a few megabytes stay in a CPU's cache,
# while an accelerator needs more to be busy.
SIZES = {"cpu": (512, 2**20, 2**24)}
ACCELERATOR_SIZES = (4096, 2**24, 2**28)


@dataclasses.dataclass(frozen=True)
class Rates:
    """The rates that a machine reaches: products by dtype, float32 exponentials, and bytes read plus bytes written."""

    flops_per_second: dict[str, float]
    exps_per_second: float
    bytes_per_second: float


# The rates that no program exceeds, by `device_kind`. Products and bandwidth are from the data sheets of H100 and H200
# (SXM). Products are without sparsity; those of float32 are in TF32, which is JAX's default for float32. exp: 16
# results per clock and multiprocessor (CUDA C++ Programming Guide, throughput of native arithmetic instructions,
# compute capability 9.0), on 132 multiprocessors at 1.98 GHz, the clock that follows from the data sheets' 66.9 TFLOP/s
# without tensor cores.
_HOPPER = {"flops_per_second": {"float32": 494.7e12, "bfloat16": 989.4e12}, "exps_per_second": 16 * 132 * 1.98e9}
PEAKS = {
    "NVIDIA H100 80GB HBM3": Rates(**_HOPPER, bytes_per_second=3.35e12),
    "NVIDIA H200": Rates(**_HOPPER, bytes_per_second=4.8e12),
}


def measure_rates(dtype: str) -> Rates:
    """Measures a square matrix product in float32 and `dtype`, exp of an array in cache, a pass over a larger one."""
    side, exp_size, copy_size = SIZES.get(jax.default_backend(), ACCELERATOR_SIZES)
    flops = {}
    for name in dict.fromkeys(("float32", dtype)):
        ones = jnp.full((side, side), 1 / side, name)
        flops[name] = 2 * side**3 / _seconds_a_step(lambda x, ones=ones: x @ ones, ones)
    return Rates(
        flops_per_second=flops,
        exps_per_second=exp_size / _seconds_a_step(lambda x: jnp.exp(-x), jnp.ones(exp_size)),
        bytes_per_second=2 * 4 * copy_size / _seconds_a_step(lambda x: -x, jnp.ones(copy_size)),
    )


def _seconds_a_step(step, x: Array, at_least: float = 0.1, trials: int = 5) -> float:
    """The time of a step in the fastest of some trials, each a loop that is long enough to hide its start."""
    loop = jax.jit(lambda x, steps: lax.fori_loop(0, steps, lambda _, x: step(x), x), donate_argnums=0)
    x = jnp.array(x)  # the loop works in place

    def run():
        nonlocal x
        x = loop(x, steps).block_until_ready()

    steps = 1
    run()  # compiles
    while seconds(run) < at_least:
        steps *= 2
    return min(seconds(run) for _ in range(trials)) / steps


@dataclasses.dataclass(frozen=True)
class Work:
    """The least work of a pass: floating-point operations, exponentials, and bytes to move."""

    flops: float
    exps: float
    bytes: float

    def seconds(self, rates: Rates, dtype: str) -> dict[str, float]:
        """The time of each kind of work at these rates, with products of `dtype`; each is a lower bound for a pass."""
        return {
            "arithmetic": self.flops / rates.flops_per_second[dtype],
            "exp": self.exps / rates.exps_per_second,
            "bandwidth": self.bytes / rates.bytes_per_second,
        }


def work(point: Point, batch: int, heads: int, head_dim: int, itemsize: int, backward: bool) -> Work:
    """The work of the forward pass, or of forward and backward: see the module's formula."""
    pairs = batch * heads * point.pairs
    features = batch * point.num_positions * heads * head_dim
    window = point.window * heads * head_dim
    offsets = math.prod(grid.relative_shape(point.grid_shape)) * heads * head_dim
    flops, exps, elements = 6 * head_dim, 1, 4 * features + window
    if backward:
        flops, exps, elements = 22 * head_dim, 2, 2 * elements + 3 * features + offsets
    return Work(float(pairs * flops), float(pairs * exps), float(elements * itemsize))


def limit_seconds(
    point: Point, batch: int, heads: int, head_dim: int, itemsize: int, rates: Rates, backward: bool
) -> float:
    """The roofline's time for the forward pass, or for forward and backward: the sum of the three times."""
    needed = work(point, batch, heads, head_dim, itemsize, backward)
    fastest = max(rates.flops_per_second, key=rates.flops_per_second.__getitem__)
    return sum(needed.seconds(rates, fastest).values())
