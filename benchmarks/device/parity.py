"""What is timed on the device against the float64 reference on the CPU: values, and the gradients of all arrays."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.device.cases import Parity
from benchmarks.device.exact import judged, relative_error
from benchmarks.device.measure import TIMED
from benchmarks.device.record import Clock, Record
from posattn_jax.axes import Array
from posattn_jax.benchmarks.shapes import THRESHOLD, make_inputs
from posattn_jax.benchmarks.timing import Skipped, failures_told, one_pass
from posattn_jax.ops.attention import relative_attention

# Of |x - exact| / |exact|, with the most exact products: kernels may split float32 into parts of bfloat16.
TOLERANCES = {"float32": 3e-4, "bfloat16": 5e-2}

SECTION = "forward_backward"


def is_complete(record: Record) -> bool:
    """Whether the timed implementations were all tried."""
    return set(TIMED) <= record.results(SECTION).keys()


def measure(case: Parity, record: Record, clock: Clock) -> None:
    """Checks the timed implementations that the record does not have yet, until the time is spent."""
    arrays, options = make_problem(case)
    cotangent = np.random.default_rng(1).standard_normal(arrays["query"].shape, np.float32)
    cpu = jax.devices("cpu")[0]
    with jax.enable_x64(True), jax.default_device(cpu):
        exact_arrays = {name: jnp.asarray(np.asarray(array, np.float64)) for name, array in arrays.items()}
        rounded = np.asarray(jnp.asarray(cotangent, case.dtype), np.float64)
        function = make_function(case, "reference", options)
        expected = jax.device_get(jax.jit(function)(exact_arrays, jnp.asarray(rounded)))
    for implementation in TIMED:
        if implementation in record.results(SECTION) or clock.spent:
            continue
        with record.attempt(SECTION, implementation, clock):
            try:
                # A TPU's kernels cannot multiply bfloat16 at a higher precision than their own.
                precision = "highest" if case.dtype == "float32" else None
                with failures_told(), jax.default_matmul_precision(precision):
                    function = jax.jit(make_function(case, implementation, options))
                    results = jax.device_get(function(arrays, jnp.asarray(cotangent, case.dtype)))
                record.results(SECTION)[implementation] = judged(errors(results, expected), TOLERANCES[case.dtype])
            except Skipped as reason:
                record.results(SECTION)[implementation] = {"absent": str(reason)}
        if "absent" in record.results(SECTION)[implementation]:
            record.check_device()


def make_problem(case: Parity) -> tuple[dict[str, Array], dict[str, Any]]:
    """The arrays that are differentiated, and what `relative_attention` is given beside them."""
    point, options = case.point, dict(case.options)
    arrays = make_inputs(point, case.batch, case.heads, case.head_dim, case.dtype)
    if options.pop("per_head", False):
        arrays["sigma"] = arrays["sigma"] * jnp.linspace(1, 0.6, case.heads)[:, None]
    if options.pop("key_mask", False):
        kept = np.random.default_rng(2).random((case.batch, point.num_positions)) < 0.8
        options["key_mask"] = kept
    return arrays, options | {"grid_shape": point.grid_shape, "threshold": THRESHOLD, "span_bound": point.half}


def make_function(case: Parity, implementation: str, options: dict[str, Any]):
    """(arrays, cotangent) -> outputs and gradients."""

    def attend(arrays):
        given = dict(options, implementation=implementation)
        given |= {name: jnp.asarray(options[name]) for name in ("key_mask",) if name in options}
        return relative_attention(**arrays, **given)

    return one_pass(attend, backward=True)


def errors(results, expected) -> dict[str, float]:
    """By array."""
    (outputs, (gradients,)), (exact_outputs, (exact_gradients,)) = results, expected
    pairs = {"outputs": (outputs, exact_outputs)}
    pairs |= {f"d {name}": (gradients[name], exact) for name, exact in exact_gradients.items()}
    return {name: relative_error(np.asarray(one, np.float64), other) for name, (one, other) in pairs.items()}
