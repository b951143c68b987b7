"""Depthwise convolution on a grid: each feature is convolved by itself."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp

from posattn_jax.axes import Array, Float, Shape

# The most offsets that a program unrolls; each one makes compilation longer.
MAX_UNROLLED = 64


def depthwise_convolution(inputs: Float[Array, "b *s c"], kernel: Float[Array, "*k c"]) -> Float[Array, "b *s c"]:
    """outputs_t = sum_o kernel_o x_{t + o}, feature by feature, with o in -(K // 2) .. K // 2; 0 outside of the grid.

    On a CPU it is a sum over shifted grids, because XLA's convolution has no fast form there inside a loop, such as the
    loop over the parts of an update (`benchmarks/depthwise.py` compares them). Elsewhere it is XLA's convolution.

    Args:
      inputs: x [b *S c].
      kernel: [*K c], odd sizes.

    Returns:
      [b *S c], in the dtype that JAX promotes both to.
    """
    return jax.lax.platform_dependent(inputs, kernel, cpu=by_shifts, default=by_xla)


def by_shifts(inputs: Array, kernel: Array) -> Array:
    """The convolution as a sum over shifted grids, in float32 or better."""
    dtype = jnp.result_type(jnp.float32, inputs, kernel)
    padding = [(0, 0), *((size // 2, size // 2) for size in kernel.shape[:-1]), (0, 0)]
    outputs = _of_padded(jnp.pad(inputs.astype(dtype), padding), kernel.astype(dtype), inputs.shape[1:-1])
    return outputs.astype(jnp.result_type(inputs, kernel))


def _of_padded(padded: Array, kernel: Array, grid_shape: Shape) -> Array:
    kernel_shape = kernel.shape[:-1]
    if math.prod(kernel_shape) <= MAX_UNROLLED:

        def term(start: tuple[int, ...]) -> Array:
            shifted = (slice(first, first + size) for first, size in zip(start, grid_shape, strict=True))
            return kernel[start] * padded[:, *shifted]

        return functools.reduce(jnp.add, map(term, itertools.product(*map(range, kernel_shape))))
    axis = next(axis for axis, size in enumerate(kernel_shape) if size > 1)

    def add_slice(outputs: Array, start: Array) -> tuple[Array, None]:
        rows = jax.lax.dynamic_slice_in_dim(padded, start, grid_shape[axis], 1 + axis)
        part = jax.lax.dynamic_slice_in_dim(kernel, start, 1, axis)
        return outputs + _of_padded(rows, part, grid_shape), None

    zeros = jnp.zeros((len(padded), *grid_shape, padded.shape[-1]), padded.dtype)
    return jax.lax.scan(add_slice, zeros, jnp.arange(kernel_shape[axis]))[0]


def by_xla(inputs: Array, kernel: Array) -> Array:
    """XLA's convolution, computed in the dtype of the outputs so that accelerators use their matrix units."""
    dtype = jnp.result_type(inputs, kernel)
    p = inputs.ndim - 2
    outputs_last, kernel_last = (0, p + 1, *range(1, p + 1)), (p + 1, p, *range(p))
    return jax.lax.conv_general_dilated(
        inputs.astype(dtype),
        kernel[..., None, :].astype(dtype),
        (1,) * p,
        "SAME",
        dimension_numbers=jax.lax.ConvDimensionNumbers(outputs_last, kernel_last, outputs_last),
        feature_group_count=inputs.shape[-1],
    )
