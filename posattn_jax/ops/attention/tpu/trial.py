"""Tries the fused kernel on this TPU: is it right, and faster than the other implementations?

python -m posattn_jax.ops.attention.tpu.trial CASE    # prints the verdict on a `Case` as JSON
"""

import importlib
import json
import math
import re
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posattn_jax.axes import Shape, Sizes
from posattn_jax.ops.attention.arguments import shape_of
from posattn_jax.ops.attention.kernel import small_sizes
from posattn_jax.ops.attention.problem import AXES, Problem
from posattn_jax.ops.attention.tpu.verdict import BEGUN, UNDECIDED, VERDICT, Case, Verdict, machine
from posattn_jax.ops.attention.xla.dense import RowLoop
from posattn_jax.ops.attention.xla.loop import run_loops
from posattn_jax.ops.attention.xla.tiled import window_loops

RUNS = 7
THRESHOLD = 0.1
# Errors of the device: it is taken or full. That a kernel needs too much of its own memory is the compiler's refusal.
OF_THE_DEVICE = re.compile(
    "^MemoryError|^OSError|Out of memory (while )?trying to allocate|OUT_OF_MEMORY|memory space hbm|UNAVAILABLE:"
    "|Unable to initialize backend"
)
# The grids on which outputs and gradients are compared, by the number of dimensions: no size is a multiple of a tile.
SMALL = {1: (37,), 2: (5, 19), 3: (2, 3, 17)}


def judge(case: Case, begin: Callable[[], None] = lambda: None) -> Verdict:
    """The verdict, computed in this process, which calls `begin` before it uses the kernel.

    It is undecided if the kernel cannot be imported, or the other implementations fail, or the device is taken or full.
    """
    try:
        module, _, name = case.kernel.partition(":")
        kernel = getattr(importlib.import_module(module), name)
        expected = _expected(case)
    except Exception as error:
        return Verdict(UNDECIDED, _reason(error))
    begin()
    try:
        difference = _difference(case, kernel, expected)
        if difference is not None:
            return Verdict("wrong", difference)
        fused = _milliseconds(case, kernel)
    except Exception as error:
        reason = _reason(error)
        return Verdict(UNDECIDED if OF_THE_DEVICE.search(reason) else "refused", reason)
    try:
        other = _milliseconds(case, _other_implementations)
    except Exception as error:
        return Verdict(UNDECIDED, _reason(error))
    times = f"{fused:.3g} ms, the other implementations {other:.3g}"
    return Verdict("trusted" if fused <= other else "slower", times, fused, other)


def _reason(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _other_implementations(problem: Problem) -> tuple[Any, Any]:
    """The implementations that "auto" uses without the fused kernel."""
    return run_loops(problem, [RowLoop(problem), *window_loops(problem)], RowLoop)


def _compared(case: Case) -> tuple[Shape, dict[str, Any]]:
    """The grid and the arrays on which the kernel is compared."""
    shape = SMALL[len(case.grid_shape)]
    return shape, make_arrays(case, shape, tuple(size // 3 for size in shape), batch=2)


def _expected(case: Case) -> dict[str, Any]:
    """The outputs and gradients of the other implementations, which multiply as the kernel does."""
    shape, arrays = _compared(case)
    return jax.block_until_ready(_results(case, _other_implementations, shape)(arrays))


def _difference(case: Case, kernel: Callable, expected: dict[str, Any]) -> str | None:
    """A message on where the kernel's outputs or gradients differ from the expected ones; None if they agree."""
    shape, arrays = _compared(case)
    found = _results(case, kernel, shape)(arrays)
    for name, exact in expected.items():
        bound = math.sqrt(float(jnp.finfo(case.dtype).eps)) * float(jnp.abs(exact.astype(float)).max())
        off = float(jnp.abs(found[name].astype(float) - exact.astype(float)).max())
        if not off <= bound:  # true for NaN too
            return f"{name} is off by {off:.2g}, allowed are {bound:.2g}, on {' x '.join(map(str, shape))}"
    return None


def _results(case: Case, implementation: Callable, shape: Shape) -> Callable:
    """A function of the arrays that returns the outputs, and the gradient of every array that has one."""
    fields = {"threshold": THRESHOLD, "span_mode": case.span_mode, "is_causal": case.is_causal, "grid_shape": shape}

    def results(arrays):
        learned = {name: x for name, x in arrays.items() if name != "key_mask"}

        def attended(learned):
            return implementation(Problem(**({"key": None} | arrays | learned), **fields))[0]

        outputs, pull_back = jax.vjp(attended, learned)
        return {"outputs": outputs} | pull_back(jnp.cos(outputs))[0]

    return jax.jit(results)


def make_arrays(case: Case, shape: Sizes, half: Shape, batch: int) -> dict[str, Any]:
    """Random arrays for a case on a grid; sigma has the half-spans `half`."""
    rng = np.random.default_rng(0)
    sizes = small_sizes(shape, case.head_dim) | {"b": batch, "h": case.num_heads, "k": case.num_heads}
    drawn = [name for name in ("query", "value", *case.arrays) if name not in ("key_mask", "sigma")]
    arrays = {name: jnp.asarray(rng.standard_normal(shape_of(AXES[name], sizes)), case.dtype) for name in drawn}
    if "key_mask" in case.arrays:
        arrays["key_mask"] = jnp.asarray(rng.random((batch, sizes["s"])) < 0.8).at[:, 0].set(True)
    if "sigma" in case.arrays:
        unit = math.sqrt(-2 * math.log(THRESHOLD)) * np.maximum(np.subtract(shape, 1), 1)
        sigma = np.maximum(np.array(half) - 0.5, 0.5) / unit
        if case.is_full:
            sigma = (np.diag(sigma) + np.tril(np.full((len(sigma),) * 2, 0.3 * sigma.min()), -1))[None]
        arrays["sigma"] = jnp.asarray(sigma, jnp.float32)
    return arrays


def _milliseconds(case: Case, implementation: Callable) -> float:
    """The median time of a forward and backward pass of one example."""
    arrays = make_arrays(case, case.grid_shape, case.half, batch=1)
    run = _results(case, implementation, case.grid_shape)
    jax.block_until_ready(run(arrays))
    taken = []
    for _ in range(RUNS):
        started = time.perf_counter()
        jax.block_until_ready(run(arrays))
        taken.append(1e3 * (time.perf_counter() - started))
    return statistics.median(taken)


def main(argument: str) -> None:
    """Prints the machine when the trial of a case begins, and then the verdict."""
    fields = json.loads(argument)
    case = Case._make(tuple(field) if isinstance(field, list) else field for field in fields)
    verdict = judge(case, lambda: print(json.dumps({BEGUN: machine()}), flush=True))
    print(json.dumps({VERDICT: verdict}))


if __name__ == "__main__":
    main(sys.argv[1])
