"""What the kernels of all platforms share: how they are called, the tables that they read, and how they are checked."""

import concurrent.futures
import contextlib
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from posattn_jax.axes import Array, SegmentIds, Sizes
from posattn_jax.ops import grid, scores, span
from posattn_jax.ops.attention.arguments import shape_of
from posattn_jax.ops.attention.problem import ARRAYS, AXES, Problem
from posattn_jax.ops.attention.xla.reference import reference_attention
from posattn_jax.ops.precision import float32_or_better
from posattn_jax.system import processes
from posattn_jax.system.compat import enable_x64

# The arrays with features of heads.
FEATURES = tuple(name for name, axes in AXES.items() if axes.endswith(" d") and name in ARRAYS)


class Kernel(NamedTuple):
    """A kernel. Its arrays have one more leading axis, o, than those of a problem, which are inside `jax.vmap` as ever.

    Its arguments begin with the problem, and the first row of queries that is asked for and the end of those that are,
    along the first dimension: [o 2], or None for all.

    Attributes:
      forward: (problem, rows) -> outputs [o b t h d], and statistics [o b t h 2] for `backward`.
      backward: (problem, rows, outputs, statistics, cotangent) -> the cotangents of the problem's arrays, as a problem.
    """

    forward: Callable[..., tuple[Array, Array]]
    backward: Callable[..., Problem]


def in_all_processes(what: str, obstacle: str | None, device: str = "") -> str | None:
    """The reason why something is not usable in all processes of the job; None if it is.

    A kernel that only some have would give them different programs. Each process gives its own reason, or None, and its
    kind of device, which must be the same.
    """
    if processes.all_answer(what, device if obstacle is None else "no"):
        return obstacle
    return obstacle or "missing in another process"


def is_learned(array: Any) -> bool:
    """Whether an array has a gradient: it is no mask, and no numbers of segments or rows."""
    return jnp.issubdtype(array.dtype, jnp.inexact)


def half_spans(problem: Problem) -> Array:
    """The half-spans [h|1 3], on the grid with three dimensions; at most what E and beta hold."""
    before, most = grid.MAX_DIMS - len(problem.grid_shape), jnp.asarray([problem.encoded_half], jnp.int32)
    if problem.sigma is not None:
        reach = jnp.atleast_2d(problem.half_of(problem.sigma))
        most = jnp.minimum(jnp.where(jnp.isnan(reach), 0, reach).astype(jnp.int32), most)
    return jnp.pad(most, [(0, 0), (before, 0)])


def segment_numbers(ids: SegmentIds) -> Array:
    """int32 numbers [b t] that are equal where the ids are: the ids, or their ranks if int32 cannot hold them."""
    if jnp.issubdtype(ids.dtype, jnp.floating) or ids.dtype.itemsize > 4:
        ids = jnp.searchsorted(jnp.sort(ids, axis=None), ids)
    return ids.astype(jnp.int32)


def sum_groups(features: Array, heads: int) -> Array:
    """Sums over the heads that share one of `heads`: [o b s h d] -> [o b s k d]."""
    return features.reshape(*features.shape[:3], heads, -1, features.shape[-1]).sum(4)


def factor_table(problem: Problem, sigma: Array) -> Array:
    """What G multiplies the sum of products with, for each offset: scale G, [h|1 *R]."""
    return problem.scaling * jnp.exp(_log_gaussian(problem, sigma))


def addend_table(problem: Problem) -> Array | None:
    """What is added to each logit, by offset: beta, G beta or beta + ln G, [h|1 *R]; None if nothing is."""
    bias, addends = None, []
    if problem.relative_bias is not None:
        bias = jnp.moveaxis(problem.relative_bias, -1, 0).astype(problem.dtype)
        if problem.masks_offsets:
            addends.append(scores.masked_out(scores.shown(bias), problem.dtype))
    if problem.sigma is not None:
        log_gaussian = _log_gaussian(problem, problem.sigma)
        if not problem.multiplies:
            addends.append(log_gaussian)
        elif bias is not None:
            bias = jnp.exp(log_gaussian) * bias
    addends += [] if bias is None else [bias]
    return functools.reduce(jnp.add, addends) if addends else None


def _log_gaussian(problem: Problem, sigma: Array) -> Array:
    offsets = grid.offsets_within(problem.encoded_half)
    coordinates = grid.normalise(offsets, problem.grid_shape, problem.reference_shape)
    return span.log_modulation(coordinates, jnp.atleast_2d(sigma), problem.span_mode).astype(problem.dtype)


def small_sizes(grid_shape: Sizes, d: int) -> dict[str, Any]:
    """The sizes of the axes of a small problem: two examples, and two heads that share one of keys."""
    n = grid.num_positions(grid_shape)
    return {"b": 2, "t": n, "s": n, "h": 2, "k": 1, "d": d, "p": len(grid_shape), "r": grid.relative_shape(grid_shape)}


def random_problem(dtypes: Mapping[str, Any], grid_shape: Sizes, d: int, sigma: str = "h p", **fields: Any) -> Problem:
    """A problem of `small_sizes` with random arrays of these dtypes, and with half-spans of `span_bound`, or all.

    `sigma` names its axes.
    """
    rng, sizes = np.random.default_rng(0), small_sizes(grid_shape, d)

    def draw(name):
        shape = shape_of(AXES[name], sizes) if name != "sigma" else ()
        match name:
            case "key_mask":
                return rng.random(shape) < 0.8
            case "segment_ids":
                return rng.integers(3, size=shape)
            case "sigma":
                return _sigma(shape_of(sigma, sizes | {"1": 1}), grid_shape, fields.get("span_bound"))
        return rng.normal(size=shape)

    arrays = {name: np.asarray(draw(name), dtype) for name, dtype in dtypes.items()}
    return Problem.of(**arrays, grid_shape=grid_shape, **fields)


def check(kernel: Kernel, problem: Problem, dtype: Any) -> None:
    """RuntimeError unless a kernel agrees with "reference" on a small problem, gradients included.

    `dtype` is that of the kernel's operands. The bound is the root of its epsilon, relative to the largest entry.
    """
    problem = jax.tree.map(np.asarray, problem)  # on no device yet

    @jax.jit
    def found(problem):
        given = jax.tree.map(lambda x: x[None], problem), None
        outputs, statistics = kernel.forward(*given)
        cotangents = kernel.backward(*given, outputs, statistics, jnp.cos(outputs))
        return outputs[0], jax.tree.map(lambda x: x[0] if is_learned(x) else None, cotangents)

    @functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # it runs once
    def expected(problem):
        exact = jax.tree.map(lambda x: x.astype(float32_or_better(x)) if is_learned(x) else x, problem)
        outputs, pull_back = jax.vjp(lambda x: reference_attention(x)[0], exact)
        (cotangents,) = pull_back(jnp.cos(outputs))
        return outputs, jax.tree.map(lambda x: x if is_learned(x) else None, cotangents)

    def results(of):
        with jax.disable_jit(False), jax.default_matmul_precision("highest"):
            outputs, cotangents = of(problem)
        named = {"outputs": outputs, **cotangents.given}
        return {name: np.asarray(x.astype(float32_or_better(x))) for name, x in named.items()}

    def on_cpu():
        with _on_cpu():
            return results(expected)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:  # both compile for long
        exact = pool.submit(_as_wide_as_here(on_cpu))
        of_kernel = results(found)
    wrong = []
    for name, x in exact.result().items():
        error, largest = float(np.abs(of_kernel[name] - x).max()), float(np.abs(x).max())
        if not error <= math.sqrt(float(jnp.finfo(dtype).eps)) * largest:  # true for NaN too
            wrong.append(f"{name} by {error:.1e} of {largest:.1e}")
    if wrong:
        raise RuntimeError(f"the compiled kernel is not right: {', '.join(wrong)}")


def untraced(function: Callable[[], None]) -> None:
    """Calls a function in a thread of its own, where no program is being traced, nor for other devices."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(_as_wide_as_here(function)).result()


def _as_wide_as_here(function: Callable[[], Any]) -> Callable[[], Any]:
    """A function for another thread, where float64 is allowed if it is in this one."""
    is_wide = jnp.result_type(float) == jnp.float64

    def called():
        with enable_x64(is_wide):
            return function()

    return called


def _sigma(shape: Sizes, grid_shape: Sizes, half: Sizes | None, threshold: float = 0.1) -> np.ndarray:
    """A sigma of some shape with these half-spans, and in all heads but the first about half as much."""
    farthest = np.array(grid_shape) - 1
    first = (
        np.maximum(np.array(farthest if half is None else half) - 0.5, 0.5)
        / np.maximum(farthest, 1)
        / math.sqrt(-2 * math.log(threshold))
    )
    first = np.diag(first) if len(shape) == 3 else first
    heads = np.arange(shape[0] if len(shape) > 1 else 1) + 1
    return first / heads.reshape(-1, *(1 for _ in shape[1:]))


def _on_cpu() -> contextlib.AbstractContextManager[Any]:
    """Inside, programs run on a CPU if JAX has one: there they compile in seconds, for a GPU in up to a minute."""
    with contextlib.suppress(RuntimeError):
        return jax.default_device(jax.local_devices(backend="cpu")[0])
    return contextlib.nullcontext()
