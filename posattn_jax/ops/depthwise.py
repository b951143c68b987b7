"""Depthwise convolution on a grid: each feature is convolved by itself."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np

from posattn_jax.axes import Array, Causal, Float, Shape
from posattn_jax.ops.kernels import applied_offsets
from posattn_jax.ops.precision import float32_or_better, promoted, times

# The most offsets that a program unrolls; each one makes compilation longer.
MAX_UNROLLED = 64


def depthwise_convolution(
    inputs: Float[Array, "b *s c"], kernel: Float[Array, "*k c"], is_causal: Causal = False
) -> Float[Array, "b *s c"]:
    """outputs_t = sum_o kernel_o x_{t + o}, feature by feature, with o in -(K // 2) .. K // 2; 0 outside of the grid.

    A causal convolution has the same kernel, and leaves out the offsets o that lie after t. Their entries of the kernel
    have no effect, and gradients of 0.

    On a CPU it is a sum over shifted grids, because XLA's convolution has no fast form there inside a loop, such as the
    loop over the parts of an update (`benchmarks/cpu/depthwise.py` compares them). Elsewhere it is XLA's convolution.

    Args:
      inputs: x [b *S c].
      kernel: [*K c], odd sizes.
      is_causal: as in `relative_attention`: True for offsets that are not after t in row-major order, in one dimension
        o <= 0; or one bool per dimension, for o <= 0 in each causal one.

    Returns:
      [b *S c], in the dtype that JAX promotes both to.
    """
    forms = {"cpu": by_shifts, "default": by_xla}
    forms = {name: functools.partial(form, is_causal=is_causal) for name, form in forms.items()}
    return jax.lax.platform_dependent(inputs, kernel, **forms)


def _applied(kernel: Array, is_causal: Causal) -> tuple[Array, list[tuple[int, int]]]:
    """The smallest block of the kernel with all offsets that are applied, others 0; and the padding that it needs."""
    shape = kernel.shape[:-1]
    applied = applied_offsets(shape, is_causal)
    last = np.argwhere(applied).max(0)
    block = tuple(slice(end + 1) for end in last.tolist())
    kernel, applied = kernel[block], applied[block]
    if not applied.all():
        kernel = jnp.where(applied[..., None], kernel, 0)
    return kernel, [(size // 2, end - size // 2) for size, end in zip(shape, last.tolist(), strict=True)]


def by_shifts(inputs: Array, kernel: Array, is_causal: Causal = False) -> Array:
    """The convolution as a sum over shifted grids, in float32 or better."""
    dtype = float32_or_better(inputs, kernel)
    block, padding = _applied(kernel.astype(dtype), is_causal)
    padded = jnp.pad(inputs.astype(dtype), [(0, 0), *padding, (0, 0)])
    return _of_padded(padded, block, inputs.shape[1:-1]).astype(promoted(inputs, kernel))


def _of_padded(padded: Array, kernel: Array, grid_shape: Shape) -> Array:
    kernel_shape = kernel.shape[:-1]
    if math.prod(kernel_shape) <= MAX_UNROLLED:

        def term(start: tuple[int, ...]) -> Array:
            shifted = (slice(first, first + size) for first, size in zip(start, grid_shape, strict=True))
            return times(kernel[start], padded[:, *shifted])

        return functools.reduce(jnp.add, map(term, itertools.product(*map(range, kernel_shape))))
    axis = next(axis for axis, size in enumerate(kernel_shape) if size > 1)

    def add_slice(outputs: Array, start: Array) -> tuple[Array, None]:
        rows = jax.lax.dynamic_slice_in_dim(padded, start, grid_shape[axis], 1 + axis)
        part = jax.lax.dynamic_slice_in_dim(kernel, start, 1, axis)
        return outputs + _of_padded(rows, part, grid_shape), None

    zeros = jnp.zeros((len(padded), *grid_shape, padded.shape[-1]), padded.dtype)
    return jax.lax.scan(add_slice, zeros, jnp.arange(kernel_shape[axis]))[0]


def by_xla(inputs: Array, kernel: Array, is_causal: Causal = False) -> Array:
    """XLA's convolution, computed in the dtype of the outputs so that accelerators use their matrix units."""
    dtype = promoted(inputs, kernel)
    block, padding = _applied(kernel.astype(dtype), is_causal)
    p = inputs.ndim - 2
    outputs_last, kernel_last = (0, p + 1, *range(1, p + 1)), (p + 1, p, *range(p))
    return jax.lax.conv_general_dilated(
        inputs.astype(dtype),
        block[..., None, :],
        (1,) * p,
        padding,
        dimension_numbers=jax.lax.ConvDimensionNumbers(outputs_last, kernel_last, outputs_last),
        feature_group_count=inputs.shape[-1],
    )
