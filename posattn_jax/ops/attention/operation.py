"""Attention as one operation of JAX: the kernel of the platform that a program is lowered for, or another layout.

The operation runs another layout where there is no kernel, in an exported program, and for derivatives of its
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
from jax._src import dispatch
from jax.extend.backend import get_default_device
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import AxisType

from posattn_jax.axes import Query
from posattn_jax.ops import grid
from posattn_jax.ops.attention.cpu import kernel as native
from posattn_jax.ops.attention.cuda import kernel as cuda
from posattn_jax.ops.attention.kernel import FEATURES, GIVEN, LEARNED, OF_KEYS, Kernel, Settings
from posattn_jax.ops.attention.partition import shared_out
from posattn_jax.ops.attention.problem import Problem
from posattn_jax.ops.attention.xla.dense import RowLoop
from posattn_jax.ops.attention.xla.loop import Loop, axes_varied_over, run_loops, varying
from posattn_jax.ops.attention.xla.tiled import window_loops
from posattn_jax.ops.precision import float32_or_better

# By JAX's name of a platform: finds the kernel for a problem, and for devices that have it; None if there is none.
KERNELS: dict[str, Callable[[Problem, Sequence[Any]], Kernel | None]] = {"cpu": native.find, "cuda": cuda.find}
ARRAYS = (*FEATURES, *LEARNED, "relative_bias", "sigma", *OF_KEYS)


def kernel_attention(
    problem: Problem, dtype: Any, otherwise: Callable[[Problem], Sequence[Loop]] = window_loops
) -> tuple[Query, None]:
    """Outputs [b t h d] of a problem without `obstacle`.

    Args:
      problem: the arguments.
      dtype: that of the kernel's outputs before they are converted to that of `value`.
      otherwise: returns the loops to choose from where there is no kernel.
    """
    if problem.block is not None:
        return _some_rows(problem, dtype, otherwise), None
    return _attended(problem, {}, dtype, otherwise), None


def _some_rows(problem: Problem, dtype: Any, otherwise: Callable) -> Query:
    """The outputs of a `Block`: of queries put on the grid of the keys, where no others are asked for."""
    block, shape, query = problem.block, problem.grid_shape, problem.query
    line, n, bound = math.prod(shape[1:]), grid.num_positions(shape), problem.encoded_half
    first, start = (jnp.asarray(x, jnp.int32) for x in (block.first, block.start))
    rows = np.arange(n, dtype=np.int32) // line + first
    key_mask = jnp.broadcast_to((rows >= 0) & (rows < block.whole[0]), (len(query), n))
    changed: dict[str, Any] = {"key_mask": key_mask if problem.key_mask is None else key_mask & problem.key_mask}
    others = jnp.zeros((len(query), n, *query.shape[2:]), query.dtype)
    changed["query"] = lax.dynamic_update_slice_in_dim(others, query, start * line, 1)
    for name in ("relative_encoding", "relative_bias"):
        if (table := getattr(problem, name)) is not None:
            beyond = [(size - 1 - near,) * 2 for size, near in zip(shape, bound, strict=True)]
            changed[name] = jnp.pad(table, beyond + [(0, 0)] * (table.ndim - len(beyond)))
    if problem.threshold <= 0:  # spans are then as wide as the keys' grid, whose rows beyond the whole grid are masked
        changed["span_bound"] = None
    whole = dataclasses.replace(problem, **changed, block=None)
    outputs = _attended(whole, {"query_rows": jnp.stack([start, start + block.rows])}, dtype, otherwise)
    return lax.dynamic_slice_in_dim(outputs, start * line, block.rows * line, 1)


def _attended(problem: Problem, more: dict[str, Any], dtype: Any, otherwise: Callable) -> Query:
    """The outputs of a problem; the kernels get `more` arrays."""
    settings = Settings(
        **{name: getattr(problem, name) for name in Settings._fields if name not in ("scale", "span_bound")},
        scale=problem.scaling,
        span_bound=None if problem.sigma is None else problem.static_half,
    )
    arrays = varying({name: x for name in ARRAYS if (x := getattr(problem, name)) is not None} | more)
    names = tuple(arrays)
    parameters = {"settings": settings, "names": names, "dtype": jnp.dtype(dtype), "otherwise": otherwise}

    def forward(*arrays):
        arrays = [array[None] for array in arrays]
        outputs, statistics = forward_operation.bind(*arrays, **parameters)
        return outputs[0], (arrays, outputs, statistics)

    @jax.custom_vjp
    def attended(*arrays):
        return forward(*arrays)[0]

    def backward(residuals, cotangent):
        arrays, outputs, statistics = residuals
        cotangents = backward_operation.bind(*arrays, outputs, statistics, cotangent[None], **parameters)
        cotangents = dict(zip(_learned(names), cotangents, strict=True))
        return tuple(cotangents[name][0] if name in cotangents else None for name in names)

    attended.defvjp(forward, backward)
    return attended(*arrays.values()).astype(problem.value.dtype)


def obstacle(problem: Problem) -> str | None:
    """The reason why no kernel can compute a problem; None if kernels may."""
    obstacles = {
        "return_weights": problem.return_weights,
        "dropout": problem.dropout_rate > 0,
        "class tokens, or parts that are by pair": problem.is_pairwise,
        "mask, bias or other scores of pairs": problem.is_by_pair,
    }
    return next((name for name, found in obstacles.items() if found), None)


def is_possible_here() -> bool:
    """Whether kernels can be in a program that is traced here: its devices share them out, or each has one of its own.

    They cannot where shardings are part of types. Inside a `jax.shard_map` over some axes of the mesh alone, a kernel
    that is asked for by name computes the same on all devices along the others: so there must be one along each.
    """
    mesh = jax.sharding.get_abstract_mesh()
    kinds = set(mesh.axis_types or ())
    wide = {kind for kind, size in zip(mesh.axis_types or (), mesh.axis_sizes, strict=True) if size > 1}
    return AxisType.Explicit not in kinds and (AxisType.Manual not in kinds or AxisType.Auto not in wide)


def _learned(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if name not in GIVEN)


def _forward_otherwise(*arrays, settings, names, dtype, otherwise, own_gradient=True):
    """The kernel's forward pass by another layout; the statistics are 0, because nothing reads them."""

    def outputs(*arrays):
        problem = settings.problem(dict(zip(names, arrays, strict=True)))
        return run_loops(problem, otherwise(problem), RowLoop, own_gradient)[0]

    kinds = map(jax.typeof, arrays)
    _, statistics = _shapes_forward(*kinds, settings=settings, names=names, dtype=dtype, otherwise=otherwise)
    zeros = varying(jnp.zeros(statistics.shape, statistics.dtype), axes_varied_over(arrays[0]))
    if len(arrays[0]) > 1:
        return jax.vmap(outputs)(*arrays).astype(dtype), zeros
    return outputs(*(x[0] for x in arrays))[None].astype(dtype), zeros  # vmapped, all loops would run


def _backward_otherwise(*given, settings, names, dtype, otherwise):
    *arrays, _, _, cotangent = given
    arrays = dict(zip(names, arrays, strict=True))

    def outputs(learned):
        both = arrays | learned
        given = (both[name] for name in names)
        return _forward_otherwise(*given, settings=settings, names=names, dtype=dtype, otherwise=otherwise)[0]

    (cotangents,) = jax.vjp(outputs, {name: arrays[name] for name in _learned(names)})[1](cotangent)
    return [cotangents[name] for name in _learned(names)]


def _forward(kernel, *arrays, settings, names, dtype, otherwise):
    outputs, statistics = kernel.forward(settings, dict(zip(names, arrays, strict=True)))
    return outputs.astype(dtype), statistics


def _backward(kernel, *given, settings, names, dtype, otherwise):
    *arrays, outputs, statistics, cotangent = given
    named = dict(zip(names, arrays, strict=True))
    cotangents = kernel.backward(settings, named, outputs, statistics, cotangent)
    return [cotangents[name].astype(named[name].dtype) for name in _learned(names)]


def _shapes_forward(*kinds, settings, names, dtype, otherwise):
    named = dict(zip(names, kinds, strict=True))
    query = named["query"]
    of_statistics = float32_or_better(*(named[name] for name in _learned(names)))
    return _kind(query, query.shape, dtype), _kind(query, (*query.shape[:-1], 2), of_statistics)


def _shapes_backward(*kinds, settings, names, dtype, otherwise):
    named = dict(zip(names, kinds, strict=False))
    return [_kind(x, x.shape, x.dtype) for name in _learned(names) for x in [named[name]]]


def _kind(of: Any, shape: Sequence[int], dtype: Any) -> Any:
    """The type of an array that varies over the same axes of devices as one of the type `of`."""
    return of.update(shape=tuple(shape), dtype=jnp.dtype(dtype), weak_type=False)


def _operation(
    name: str,
    by_kernel: Callable,
    otherwise: Callable,
    shapes: Callable,
    in_and_out: tuple[Callable, Callable],
    **differentiable,
) -> Primitive:
    """An operation that calls `by_kernel` with a kernel, or `otherwise`; both take arrays with one leading axis.

    `in_and_out` give the names of its arguments and results for the names of the arrays. Its derivative is that of
    `otherwise` with the options `differentiable`.
    """
    operation = Primitive(f"attention_{name}")
    operation.multiple_results = True
    operation.def_abstract_eval(shapes)
    dispatch.prim_requires_devices_during_lowering.add(operation)  # as what partitions it

    def evaluated(*arrays, **parameters):
        with jax.disable_jit(False):  # without jit an operation has no program
            return _jitted(operation, tuple(parameters.items()))(*arrays)

    operation.def_impl(evaluated)

    def lowered(platform, context, *arrays, **parameters):
        devices, names = _devices(context.module_context), parameters["names"]

        def part(*arrays):
            return operation.bind(*arrays, **parameters)

        def chosen(*arrays):
            problem = parameters["settings"].problem({name: x[0] for name, x in zip(names, arrays, strict=False)})
            kernel = KERNELS[platform](problem, devices) if devices else None
            if kernel is None:
                return otherwise(*arrays, **parameters)
            if not _is_shared_out(context.module_context):
                return by_kernel(kernel, *arrays, **parameters)
            of_results = shapes(*map(jax.typeof, arrays), **parameters)
            arguments, results = (
                {name: x.shape for name, x in zip(named(names), xs, strict=True)}
                for named, xs in zip(in_and_out, (arrays, of_results), strict=True)
            )
            return shared_out(part, arguments, results)(*arrays)

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
    kinds = [jax.core.ShapedArray(kind.shape, kind.dtype) for kind in context.avals_in]
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


def _arguments(names: tuple[str, ...]) -> tuple[str, ...]:
    return (*names, "outputs", "statistics", "cotangent")


forward_operation = _operation(
    "forward",
    _forward,
    _forward_otherwise,
    _shapes_forward,
    (lambda names: names, lambda names: ("outputs", "statistics")),
    own_gradient=False,
)
backward_operation = _operation("backward", _backward, _backward_otherwise, _shapes_backward, (_arguments, _learned))
