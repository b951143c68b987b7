"""Whether the kernels for GPUs are right: small problems of every kind, against "reference" on the CPU."""

import concurrent.futures
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType

from benchmarks.device.exact import judged, relative_error
from posattn_jax.benchmarks.shapes import THRESHOLD, Point, parse_shape
from posattn_jax.benchmarks.timing import one_pass
from posattn_jax.ops import grid
from posattn_jax.ops.attention import halo_attention, relative_attention
from posattn_jax.ops.attention.arguments import shape_of
from posattn_jax.ops.attention.kernel import small_sizes
from posattn_jax.ops.attention.problem import AXES

# Of |x - exact| / |exact|, in Frobenius norms. In the emulator the largest are 1.4e-2 (sigma, 256 features) and 2.4e-5.
TOLERANCES = {"bfloat16": 3e-2, "float32": 2e-4}
WORKERS = 8

CONTENT = ("key", "content_bias")
POSITIONS = ("relative_encoding", "position_bias")
ALL = (*CONTENT, *POSITIONS)


class Problem(NamedTuple):
    """Two examples of two heads.

    Attributes:
      shape: the grid.
      half: the half-spans, the same along each dimension; None without a span.
      d: the features of a head.
      dtype: of all arrays but sigma.
      parts: the arrays beside query and value.
      sigma: "shared" by the heads, "heads" for one each, or "covariance" for a factor L each.
      options: of `relative_attention`; "key_mask" and "segment_ids" are random.
      is_cut: whether the grid is cut over all devices, which hold only the offsets within the span: `halo_attention`.
    """

    shape: str
    half: int | None
    d: int
    dtype: str
    parts: tuple[str, ...]
    sigma: str = "shared"
    options: tuple[tuple[str, Any], ...] = ()
    is_cut: bool = False


MASKS = (("key_mask", True), ("segment_ids", True))
PROBLEMS = {
    "2-D, E, u, v, a sigma a head": Problem("2d19x33", 8, 64, "bfloat16", ALL, "heads"),
    "2-D, beta, masks": Problem("2d19x33", 4, 8, "float32", (*ALL, "relative_bias"), "heads", MASKS),
    "1-D, causal": Problem("1d300", 30, 64, "bfloat16", ALL, "shared", (("is_causal", True), *MASKS[:1])),
    "1-D, causal, no span": Problem("1d200", None, 32, "float32", ALL, "shared", (("is_causal", True),)),
    "2-D, all pairs, several slabs": Problem("2d22x21", None, 8, "float32", ALL),
    "2-D, wide span, several slabs": Problem("2d24x24", 20, 8, "float32", ALL),
    "2-D, wide log_add, several slabs": Problem(
        "2d24x24", 20, 32, "bfloat16", ALL, "heads", (("span_mode", "log_add"),)
    ),
    "3-D, causal in one dimension": Problem(
        "3d5x6x7", 2, 32, "bfloat16", ALL, "shared", (("is_causal", (False, False, True)),)
    ),
    "3-D, beta, segments, log_add": Problem(
        "3d5x6x7", 3, 5, "float32", (*ALL, "relative_bias"), "heads", (("span_mode", "log_add"), *MASKS[1:])
    ),
    "2-D, beta alone": Problem("2d19x33", None, 64, "bfloat16", ("relative_bias",)),
    "2-D, a covariance": Problem("2d19x12", 5, 64, "float32", ALL, "covariance"),
    "3-D, a covariance": Problem("3d5x6x7", 2, 8, "float32", ALL, "covariance"),
    "2-D, 128 features": Problem("2d17x12", 5, 128, "bfloat16", ALL, "shared", MASKS[:1]),
    "2-D, content alone, 256 features": Problem("2d12x14", 4, 256, "bfloat16", CONTENT),
    "2-D, beta, key mask, cut over devices": Problem(
        "2d19x33", 4, 64, "bfloat16", (*ALL, "relative_bias"), "heads", MASKS[:1], is_cut=True
    ),
    "1-D, causal, cut over devices": Problem(
        "1d300", 30, 8, "float32", ALL, "shared", (("is_causal", True),), is_cut=True
    ),
}
QUICK = {
    "2-D, beta, masks": Problem("2d5x4", 2, 5, "float32", (*ALL, "relative_bias"), "heads", MASKS),
    "1-D, causal": Problem("1d12", 3, 8, "bfloat16", ALL, "shared", (("is_causal", True),)),
    "2-D, cut over devices": Problem("2d5x4", 2, 5, "float32", (*ALL, "relative_bias"), "heads", is_cut=True),
}


def make_arrays(problem: Problem) -> tuple[dict[str, Any], dict[str, Any]]:
    """Random arrays that are differentiated, and the other arguments of `relative_attention`."""
    rng, shape = np.random.default_rng(0), parse_shape(problem.shape)
    sizes = small_sizes(shape, problem.d)
    arrays: dict[str, Any] = {
        name: jnp.asarray(rng.standard_normal(shape_of(AXES[name], sizes)), problem.dtype)
        for name in ("query", "value", *problem.parts)
    }
    options: dict[str, Any] = dict(problem.options) | {"grid_shape": shape, "threshold": THRESHOLD}
    n = grid.num_positions(shape)
    if "key_mask" in options:
        options["key_mask"] = rng.random((2, n)) < 0.8
    if "segment_ids" in options:
        options["segment_ids"] = np.sort(rng.integers(3, size=(2, n)), -1).astype(np.int32)
    if problem.half is not None:
        bound = tuple(min(problem.half, size - 1) for size in shape)
        sigma = np.array(Point("", shape, bound).sigma)
        if problem.sigma == "heads":
            sigma = np.stack([sigma, 0.6 * sigma])
        if problem.sigma == "covariance":  # L: its rows have the lengths of sigma
            factor = np.linalg.cholesky(np.full((len(shape),) * 2, 0.4) + 0.6 * np.eye(len(shape)))
            sigma = np.stack([sigma[:, None] * factor, 0.6 * np.diag(sigma)])
        arrays["sigma"] = jnp.asarray(sigma, jnp.float32)
        options["span_bound"] = bound
    return arrays, options


def compare(problem: Problem, implementation: str) -> dict[str, float]:
    """The errors of outputs and gradients; ValueError if the implementation refuses the problem."""
    arrays, options = make_arrays(problem)
    mesh = jax.make_mesh((jax.device_count(),), ("grid",), axis_types=(AxisType.Auto,)) if problem.is_cut else None
    cotangent = np.asarray(jnp.asarray(np.random.default_rng(1).normal(size=arrays["query"].shape), problem.dtype))

    def results(implementation, arrays, attention=relative_attention):
        def attend(arrays):
            given: dict[str, Any] = {
                name: jnp.asarray(x) if isinstance(x, np.ndarray) else x for name, x in options.items()
            }
            return attention(**{"key": None} | arrays, **dict(given, implementation=implementation))

        compiled = jax.jit(one_pass(attend, backward=True))
        outputs, (gradients,) = compiled(arrays, jnp.asarray(cotangent, arrays["value"].dtype))
        return {name: np.asarray(x, np.float64) for name, x in {"outputs": outputs, **gradients}.items()}

    with jax.default_matmul_precision("highest"):
        if mesh is None:
            found = results(implementation, arrays)
        else:
            with jax.set_mesh(mesh):
                found = results(implementation, arrays, halo_attention)
        with jax.default_device(jax.devices("cpu")[0]):
            exact = {name: jnp.asarray(np.asarray(x, np.float32)) for name, x in arrays.items()}
            expected = results("reference", exact)
    return {name: relative_error(found[name], exact) for name, exact in expected.items()}


def compare_all(problems: dict[str, Problem], implementation: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name and the result of each problem as it comes: several are compiled at a time."""

    def result(problem):
        try:
            errors = compare(problem, implementation)
        except Exception as error:
            return {"failed": (str(error).strip() or type(error).__name__).splitlines()[0], "agrees": False}
        return judged(errors, TOLERANCES[problem.dtype])

    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        yield from zip(problems, pool.map(result, problems.values()), strict=True)
