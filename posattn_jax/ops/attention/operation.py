"""Attention as one operation of JAX: the kernel of the platform that it is lowered for, or another implementation.

The operation runs another implementation where there is no kernel, in an exported program, and for derivatives of its
gradients.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType

from posattn_jax.axes import Array, Query
from posattn_jax.ops import grid
from posattn_jax.ops.attention.arguments import Block
from posattn_jax.ops.attention.cpu import kernel as native
from posattn_jax.ops.attention.cuda import kernel as cuda
from posattn_jax.ops.attention.kernel import Kernel, is_learned
from posattn_jax.ops.attention.partition import shared_out
from posattn_jax.ops.attention.problem import Problem
from posattn_jax.ops.attention.xla.loop import axes_varied_over, varying
from posattn_jax.ops.precision import float32_or_better
from posattn_jax.system.compat import (
    Primitive,
    ShapedArray,
    ad,
    batching,
    get_default_device,
    mlir,
    prim_requires_devices_during_lowering,
)

# By JAX's name of a platform: finds the kernel for a problem, and for devices that have it; None if there is none.
KERNELS: dict[str, Callable[[Problem, Sequence[Any]], Kernel | None]] = {"cpu": native.find, "cuda": cuda.find}
# Of outputs, statistics, and the cotangent of outputs.
AXES_OF_RESULTS = ["b t h d", "b t h 2", "b t h d"]


def kernel_attention(problem: Problem, dtype: Any, otherwise: Callable) -> tuple[Query, None]:
    """Outputs [b t h d] of a problem that kernels support.

    Args:
      problem: the arguments.
      dtype: that of the kernel's outputs before they are converted to that of `value`.
      otherwise: (problem, own_gradient) -> outputs and weights, the attention where there is no kernel.
    """
    if problem.block is not None:
        return _some_rows(problem, problem.block, dtype, otherwise), None
    return _attended(problem, None, dtype, otherwise), None


def _some_rows(problem: Problem, block: Block, dtype: Any, otherwise: Callable) -> Query:
    """The outputs of a block: of queries put on the grid of the keys, where no others are asked for."""
    # Here, so that devices sum the cotangents of tables as they were given.
    problem = varying(jax.tree.map(jnp.asarray, problem))
    shape, query = problem.grid_shape, problem.query
    line, n = math.prod(shape[1:]), grid.num_positions(shape)
    first, start = (jnp.asarray(x, jnp.int32) for x in (block.first, block.start))
    rows = np.arange(n, dtype=np.int32) // line + first
    key_mask = jnp.broadcast_to((rows >= 0) & (rows < block.whole[0]), (len(query), n))
    others = jnp.zeros((len(query), n, *query.shape[2:]), query.dtype)
    changed: dict[str, Any] = {
        "query": lax.dynamic_update_slice_in_dim(others, query, start * line, 1),
        "key_mask": key_mask if problem.key_mask is None else key_mask & problem.key_mask,
    }
    if problem.threshold <= 0:  # spans are as wide as the keys' grid, whose rows beyond the whole grid are masked
        beyond = [(size - 1 - most,) * 2 for size, most in zip(shape, problem.encoded_half, strict=True)]
        for name in ("relative_encoding", "relative_bias"):
            if (table := getattr(problem, name)) is not None:
                changed[name] = jnp.pad(table, beyond + [(0, 0)] * (table.ndim - len(beyond)))
        changed |= {"span_bound": None, "encoded_bound": None}
    whole = dataclasses.replace(problem, **changed, block=None)
    outputs = _attended(whole, jnp.stack([start, start + block.rows]), dtype, otherwise)
    return lax.dynamic_slice_in_dim(outputs, start * line, block.rows * line, 1)


def _attended(problem: Problem, rows: Array | None, dtype: Any, otherwise: Callable) -> Query:
    """The outputs of a problem; those of some rows of queries, [2] as for `Kernel`, are enough."""
    bound = None if problem.sigma is None else problem.static_half
    given = varying((dataclasses.replace(problem, span_bound=bound, factors=None), rows))
    parameters = {"tree": jax.tree.structure(given), "dtype": jnp.dtype(dtype), "otherwise": otherwise}

    def forward(given):
        given = jax.tree.map(lambda x: x[None], given)
        outputs, statistics = forward_operation.bind(*jax.tree.leaves(given), **parameters)
        return outputs[0], (given, outputs, statistics)

    @jax.custom_vjp
    def attended(given):
        return forward(given)[0]

    def backward(residuals, cotangent):
        given, outputs, statistics = residuals
        arrays = jax.tree.leaves(given)
        cotangents = iter(backward_operation.bind(*arrays, outputs, statistics, cotangent[None], **parameters))
        found = [next(cotangents)[0] if is_learned(x) else None for x in arrays]
        return (jax.tree.unflatten(parameters["tree"], found),)

    attended.defvjp(forward, backward)
    return attended(given).astype(problem.value.dtype)


def is_possible_here() -> bool:
    """Whether kernels can be in a program that is traced here: its devices share them out, or each has one of its own.

    They cannot where shardings are part of types. Inside a `jax.shard_map` over some axes of the mesh alone, a kernel
    that is asked for by name computes the same on all devices along the others: so there must be one along each.
    """
    mesh = jax.sharding.get_abstract_mesh()
    kinds = set(mesh.axis_types or ())
    wide = {kind for kind, size in zip(mesh.axis_types or (), mesh.axis_sizes, strict=True) if size > 1}
    return AxisType.Explicit not in kinds and (AxisType.Manual not in kinds or AxisType.Auto not in wide)


def _forward_otherwise(*arrays, tree, dtype, otherwise, own_gradient=True):
    """The kernel's forward pass by another implementation; the statistics are 0, because nothing reads them."""

    def outputs(*arrays):
        return otherwise(jax.tree.unflatten(tree, arrays)[0], own_gradient)[0]

    _, statistics = _shapes_forward(*map(jax.typeof, arrays), tree=tree, dtype=dtype, otherwise=otherwise)
    zeros = varying(jnp.zeros(statistics.shape, statistics.dtype), axes_varied_over(arrays[0]))
    if len(arrays[0]) > 1:
        return jax.vmap(outputs)(*arrays).astype(dtype), zeros
    return outputs(*(x[0] for x in arrays))[None].astype(dtype), zeros  # vmapped, all loops would run


def _backward_otherwise(*given, tree, **options):
    *arrays, _, _, cotangent = given
    learned = [x for x in arrays if is_learned(x)]

    def outputs(*learned):
        learned = iter(learned)
        both = [next(learned) if is_learned(x) else x for x in arrays]
        return _forward_otherwise(*both, tree=tree, **options)[0]

    return list(jax.vjp(outputs, *learned)[1](cotangent))


def _forward(kernel, *arrays, tree, dtype, otherwise):
    outputs, statistics = kernel.forward(*jax.tree.unflatten(tree, arrays))
    return outputs.astype(dtype), statistics


def _backward(kernel, *given, tree, dtype, otherwise):
    *arrays, outputs, statistics, cotangent = given
    found = kernel.backward(*jax.tree.unflatten(tree, arrays), outputs, statistics, cotangent)
    return [x for x, array in zip(jax.tree.leaves(found), arrays, strict=False) if is_learned(array)]


def _shapes_forward(*kinds, tree, dtype, otherwise):
    query = jax.tree.unflatten(tree, kinds)[0].query
    of_statistics = float32_or_better(*filter(is_learned, kinds))
    return _kind(query, query.shape, dtype), _kind(query, (*query.shape[:-1], 2), of_statistics)


def _shapes_backward(*given, tree, dtype, otherwise):
    return [_kind(x, x.shape, x.dtype) for x in given[: tree.num_leaves] if is_learned(x)]


def _kind(of: Any, shape: Sequence[int], dtype: Any) -> Any:
    """The type of an array that varies over the same axes of devices as one of the type `of`."""
    return of.update(shape=tuple(shape), dtype=jnp.dtype(dtype), weak_type=False)


def _operation(name: str, by_kernel: Callable, otherwise: Callable, shapes: Callable, **differentiable) -> Primitive:
    """An operation that calls `by_kernel` with a kernel, or `otherwise`; both take arrays with one leading axis.

    Its derivative is that of `otherwise` with the options `differentiable`.
    """
    operation = Primitive(f"attention_{name}")
    operation.multiple_results = True
    operation.def_abstract_eval(shapes)
    prim_requires_devices_during_lowering.add(operation)  # as what partitions it

    def evaluated(*arrays, **parameters):
        with jax.disable_jit(False):  # without jit an operation has no program
            return _jitted(operation, tuple(parameters.items()))(*arrays)

    operation.def_impl(evaluated)

    def lowered(platform, context, *arrays, **parameters):
        devices, tree = _devices(context.module_context), parameters["tree"]

        def part(*arrays):
            return operation.bind(*arrays, **parameters)

        def chosen(*arrays):
            given = jax.tree.unflatten(tree, [x[0] for x in arrays[: tree.num_leaves]])
            kernel = KERNELS[platform](given[0], devices) if devices else None
            if kernel is None:
                return otherwise(*arrays, **parameters)
            if not _is_shared_out(context.module_context):
                return by_kernel(kernel, *arrays, **parameters)
            axes = [*jax.tree.leaves((given[0].axes, None if given[1] is None else "rows")), *AXES_OF_RESULTS]
            results = AXES_OF_RESULTS[:2]
            if len(arrays) > tree.num_leaves:
                results = [each for each, x in zip(axes, arrays[: tree.num_leaves], strict=False) if is_learned(x)]
            return shared_out(part, axes[: len(arrays)], results, [x.shape for x in arrays])(*arrays)

        return _lowered(chosen, context, *arrays)

    mlir.register_lowering(operation, functools.partial(_lowered, otherwise))
    for platform in KERNELS:
        mlir.register_lowering(operation, functools.partial(lowered, platform), platform=platform)

    def mapped(arrays, axes, **parameters):
        """Merges a mapped axis into the leading one."""
        size = next(x.shape[axis] for x, axis in zip(arrays, axes, strict=True) if axis is not None)
        arrays = [
            jnp.broadcast_to(x, (size, *x.shape)) if axis is None else jnp.moveaxis(x, axis, 0)
            for x, axis in zip(arrays, axes, strict=True)
        ]
        results = operation.bind(*(lax.collapse(x, 0, 2) for x in arrays), **parameters)
        return [x.reshape(size, x.shape[0] // size, *x.shape[1:]) for x in results], [0] * len(results)

    def derivative(arrays, tangents, **parameters):
        tangents = tuple(ad.instantiate_zeros(tangent) for tangent in tangents)
        return jax.jvp(functools.partial(otherwise, **parameters, **differentiable), arrays, tangents)

    batching.primitive_batchers[operation] = mapped
    ad.primitive_jvps[operation] = derivative
    return operation


def _lowered(function, context, *arrays, **parameters):
    """What a function of the arrays is lowered to; no program says over which axes of devices arrays vary."""
    kinds = [ShapedArray(kind.shape, kind.dtype) for kind in context.avals_in]
    return mlir.lower_fun(function, multiple_results=True)(context.replace(avals_in=kinds), *arrays, **parameters)


def _devices(module_context) -> Sequence[Any]:
    """The devices that a program is lowered for; none for one that is exported, or of several platforms."""
    if module_context.lowering_parameters.for_export or len(module_context.platforms) > 1:
        return ()
    if assigned := getattr(module_context.axis_context, "device_assignment", None):
        return assigned
    with contextlib.suppress(RuntimeError):  # there is only the description of a device
        backend = module_context.get_backend(optional=True)
        if backend is not None:
            return backend.devices()
    return [get_default_device()]


def _is_shared_out(module_context) -> bool:
    """Whether the compiler shares out what is lowered over several devices: not inside a `jax.shard_map`."""
    return len(getattr(module_context.axis_context, "device_assignment", None) or ()) > 1


@functools.cache
def _jitted(operation, parameters):
    return jax.jit(functools.partial(operation.bind, **dict(parameters)))


forward_operation = _operation("forward", _forward, _forward_otherwise, _shapes_forward, own_gradient=False)
backward_operation = _operation("backward", _backward, _backward_otherwise, _shapes_backward)
