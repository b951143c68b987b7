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

from posattn_jax.axes import Array, Causal, Sizes
from posattn_jax.ops import grid, scores, span
from posattn_jax.ops.attention.problem import Problem
from posattn_jax.ops.attention.xla.reference import reference_attention
from posattn_jax.ops.precision import float32_or_better
from posattn_jax.system import processes

# The arrays with features, in the order of the kernel's arguments: one row per position, and shared by all examples.
FEATURES = ("query", "key", "value")
LEARNED = ("relative_encoding", "content_bias", "position_bias")
# The arrays without a gradient: of one number per key; and [2], the first row of queries that is asked for and the end
# of those that are, along the first dimension.
OF_KEYS = ("key_mask", "segment_ids")
GIVEN = (*OF_KEYS, "query_rows")


class Settings(NamedTuple):
    """The fields of a `Problem` that are known while compiling."""

    grid_shape: tuple[int, ...]
    reference_shape: tuple[int, ...]
    threshold: float
    span_mode: str
    is_causal: Causal
    scale: float
    span_bound: tuple[int, ...] | None

    def problem(self, arrays: dict[str, Array]) -> Problem:
        """Builds the problem again from its arrays, without a choice of queries."""
        arrays = {name: x for name, x in arrays.items() if name != "query_rows"}
        return Problem(**{"key": None} | arrays, **self._asdict())


class Kernel(NamedTuple):
    """A kernel; its arrays have names, and one more leading axis, o, than those of a problem.

    Attributes:
      forward: (settings, arrays) -> outputs [o b t h d], and statistics [o b t h 2] for `backward`.
      backward: (settings, arrays, outputs, statistics, cotangent) -> the cotangents of all arrays but those in `GIVEN`.
    """

    forward: Callable[..., tuple[Array, Array]]
    backward: Callable[..., dict[str, Array]]


def in_all_processes(what: str, obstacle: str | None, device: str = "") -> str | None:
    """The reason why something is not usable in all processes of the job; None if it is.

    A kernel that only some have would give them different programs. Each process gives its own reason, or None, and its
    kind of device, which must be the same.
    """
    if processes.all_answer(what, device if obstacle is None else "no"):
        return obstacle
    return obstacle or "missing in another process"


def half_spans(problem: Problem, arrays: dict[str, Array]) -> Array:
    """The half-spans [o h|1 3] of arrays with one more leading axis, on the grid with three dimensions."""
    before = grid.MAX_DIMS - len(problem.grid_shape)
    if "sigma" not in arrays:
        shape = (1,) * before + tuple(problem.grid_shape)
        return jnp.broadcast_to(jnp.asarray(shape, jnp.int32) - 1, (len(arrays["query"]), 1, grid.MAX_DIMS))
    reach = jax.vmap(lambda sigma: jnp.atleast_2d(problem.half_of(sigma)))(arrays["sigma"])
    reach = jnp.where(jnp.isnan(reach), 0, reach).astype(jnp.int32)
    return jnp.pad(reach, [(0, 0), (0, 0), (before, 0)])


def sum_groups(features: Array, heads: int) -> Array:
    """Sums over the heads that share one of `heads`: [o b s h d] -> [o b s k d]."""
    return features.reshape(*features.shape[:3], heads, -1, features.shape[-1]).sum(4)


def multiplies(problem: Problem, learned: dict[str, Array]) -> bool:
    """Whether there is a table of factors."""
    return "sigma" in learned and problem.span_mode == "multiply"


def factor_table(problem: Problem, sigma: Array) -> Array:
    """What G multiplies the sum of products with, for each offset: scale G, [h|1 *R]."""
    return problem.scaling * jnp.exp(_log_gaussian(problem, sigma))


def addend_table(problem: Problem, learned: dict[str, Array]) -> Array | None:
    """What is added to each logit, by offset: beta, G beta or beta + ln G, [h|1 *R]; None if nothing is."""
    bias, addends = None, []
    if "relative_bias" in learned:
        bias = jnp.moveaxis(learned["relative_bias"], -1, 0).astype(problem.dtype)
        if problem.masks_offsets:
            addends.append(scores.masked_out(scores.shown(bias), problem.dtype))
    if "sigma" in learned:
        log_gaussian = _log_gaussian(problem, learned["sigma"])
        if problem.span_mode != "multiply":
            addends.append(log_gaussian)
        elif bias is not None:
            bias = jnp.exp(log_gaussian) * bias
    addends += [] if bias is None else [bias]
    return functools.reduce(jnp.add, addends) if addends else None


def _log_gaussian(problem: Problem, sigma: Array) -> Array:
    offsets = grid.relative_offsets(problem.grid_shape)
    coordinates = grid.normalise(offsets, problem.grid_shape, problem.reference_shape)
    return span.log_modulation(coordinates, jnp.atleast_2d(sigma), problem.span_mode).astype(problem.dtype)


def sizes_of(grid_shape: Sizes, d: int) -> dict[str, tuple[int, ...]]:
    """The shapes of a small problem's arrays but sigma, with two examples, and two heads that share one of keys."""
    n, offsets = grid.num_positions(grid_shape), grid.relative_shape(grid_shape)
    sizes = {"query": (2, n, 2, d), "relative_encoding": (*offsets, 2, d)}
    sizes |= dict.fromkeys(("key", "value"), (2, n, 1, d))
    sizes |= dict.fromkeys(("content_bias", "position_bias"), (2, d)) | {"relative_bias": (*offsets, 2)}
    return sizes | dict.fromkeys(OF_KEYS, (2, n))


def check(kernel: Kernel, settings: Settings, kinds: Mapping[str, jax.ShapeDtypeStruct], dtype: Any) -> None:
    """RuntimeError unless a kernel agrees with "reference", gradients included.

    Args:
      kernel: what is checked.
      settings: those of a small problem.
      kinds: the shapes and dtypes of its arrays. They are random, with half-spans of at most `span_bound`.
      dtype: that of the kernel's operands. The bound is the root of its epsilon, relative to the largest entry.
    """
    rng = np.random.default_rng(0)
    arrays = {
        name: jnp.asarray(_sigma(settings, kind.shape) if name == "sigma" else rng.normal(size=kind.shape), kind.dtype)
        for name, kind in kinds.items()
        if name not in GIVEN
    }
    given = {"key_mask": lambda size: rng.random(size) < 0.8, "segment_ids": lambda size: rng.integers(3, size=size)}
    given = {name: draw(kinds[name].shape).astype(kinds[name].dtype) for name, draw in given.items() if name in kinds}

    def masks():
        return {name: jnp.asarray(x) for name, x in given.items()}

    @jax.jit
    def found(arrays):
        arrays = jax.tree.map(lambda x: x[None], arrays | masks())
        outputs, statistics = kernel.forward(settings, arrays)
        cotangents = kernel.backward(settings, arrays, outputs, statistics, jnp.cos(outputs))
        return {"outputs": outputs[0]} | {name: x[0] for name, x in cotangents.items()}

    @functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # it runs once
    def expected(arrays):
        exact = {name: x.astype(float32_or_better(x)) for name, x in arrays.items()}
        outputs, pull_back = jax.vjp(lambda x: reference_attention(settings.problem(x | masks()))[0], exact)
        return {"outputs": outputs} | pull_back(jnp.cos(outputs))[0]

    def results(of, arrays):
        with jax.disable_jit(False), jax.default_matmul_precision("highest"):
            return {name: np.asarray(x.astype(float32_or_better(x))) for name, x in of(arrays).items()}

    def on_cpu(arrays):
        with _on_cpu():
            return results(expected, jax.tree.map(jnp.asarray, arrays))

    with concurrent.futures.ThreadPoolExecutor(1) as pool:  # both compile for long
        exact = pool.submit(on_cpu, jax.tree.map(np.asarray, arrays))
        of_kernel = results(found, arrays)
    wrong = []
    for name, x in exact.result().items():
        error, largest = float(np.abs(of_kernel[name] - x).max()), float(np.abs(x).max())
        if not error <= math.sqrt(float(jnp.finfo(dtype).eps)) * largest:  # true for NaN too
            wrong.append(f"{name} by {error:.1e} of {largest:.1e}")
    if wrong:
        raise RuntimeError(f"the compiled kernel is not right: {', '.join(wrong)}")


def untraced(function: Callable[[], None]) -> None:
    """Calls a function in a thread of its own, where no program is being traced, nor for other devices."""
    enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64  # of an older jax
    is_wide = jax.config.jax_enable_x64

    def called():
        with enable_x64(is_wide):
            function()

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(called).result()


def _sigma(settings: Settings, shape: Sizes) -> np.ndarray:
    """A sigma of some shape whose half-spans are `span_bound`, and in all heads but the first about half as much."""
    sizes = np.array(settings.grid_shape)
    half = sizes - 1 if settings.span_bound is None else np.array(settings.span_bound)
    first = np.maximum(half - 0.5, 0.5) / np.maximum(sizes - 1, 1) / math.sqrt(-2 * math.log(settings.threshold))
    first = np.diag(first) if len(shape) == 3 else first
    heads = np.arange(shape[0] if len(shape) > 1 else 1) + 1
    return first / heads.reshape(-1, *(1 for _ in shape[1:]))


def _on_cpu() -> contextlib.AbstractContextManager[Any]:
    """Inside, programs run on a CPU if JAX has one: there they compile in seconds, for a GPU in up to a minute."""
    with contextlib.suppress(RuntimeError):
        return jax.default_device(jax.local_devices(backend="cpu")[0])
    return contextlib.nullcontext()
