"""Layout "native": one compiled kernel for CPUs, whose cost and memory depend on the span.

For JAX it is one operation. The operation runs the kernel if it is compiled for the CPU that it is traced on. It runs
another layout in an exported program, on another platform, and for derivatives of its gradients.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from posattn_jax.axes import Query, Shape
from posattn_jax.ops import grid
from posattn_jax.ops.attention.dense import RowLoop
from posattn_jax.ops.attention.loop import Loop, attend, check_vma
from posattn_jax.ops.attention.native import library, program
from posattn_jax.ops.attention.native.program import Settings
from posattn_jax.ops.attention.problem import Problem
from posattn_jax.ops.attention.reference import reference_attention
from posattn_jax.ops.attention.tiled import window_loops
from posattn_jax.ops.precision import float32_or_better

ARRAYS = (*program.FEATURES, *program.LEARNED, "relative_bias", "sigma", *program.GIVEN)
# The most queries of a tile, and the most keys of a vector: see vectors.h.
TILE_QUERIES = LANES = 8


def native_attention(
    problem: Problem, otherwise: Callable[[Problem], Sequence[Loop]] = window_loops
) -> tuple[Query, None]:
    """Outputs [b t h d]; `otherwise` returns the loops to choose from where the kernel cannot run.

    ValueError if there is an `obstacle`.
    """
    if (found := obstacle(problem)) is not None:
        raise ValueError(f'implementation="native" does not support {found}: "auto" does')
    settings = Settings(
        **{name: getattr(problem, name) for name in Settings._fields if name != "scale"}, scale=problem.scaling
    )
    arrays = {name: getattr(problem, name) for name in ARRAYS if getattr(problem, name) is not None}
    check_vma(arrays)
    names = tuple(arrays)
    parameters = {"settings": settings, "names": names, "otherwise": otherwise}

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
    return attended(*arrays.values()).astype(problem.value.dtype), None


def obstacle(problem: Problem) -> str | None:
    """The reason why the kernel cannot compute a problem; None if it can."""
    obstacles = {
        "return_weights": problem.return_weights,
        "dropout": problem.dropout_rate > 0,
        "a grid that is cut over devices": problem.block is not None,
        "class tokens, or parts that are by pair": problem.is_pairwise,
        "mask, bias or other scores of pairs": problem.is_by_pair,
    }
    return next((name for name, found in obstacles.items() if found), missing(problem.dtype))


def missing(dtype: Any = jnp.float32) -> str | None:
    """The reason why there is no kernel here; None if there is one."""
    if jax.default_backend() != "cpu":
        return f"the platform {jax.default_backend()}"
    name = np.dtype(dtype).name
    found = library.obstacle(name, functools.partial(_check, name))
    return None if found is None else f"this CPU ({found})"


def pairs(grid_shape: Shape, half: Shape) -> int:
    """The number of query-key pairs computed for a half-span: in tiles of queries, and whole vectors of keys."""
    met = 1
    for axis, (size, reach) in enumerate(zip(grid_shape, half, strict=True)):
        is_last = axis == len(grid_shape) - 1
        tile, lanes = (TILE_QUERIES, LANES) if is_last else (1, 1)
        starts = np.arange(0, size, tile)
        keys = np.minimum(starts + tile + reach, size) - np.maximum(starts - reach, 0)
        met *= int((-(-keys // lanes) * lanes).sum()) * tile
    return met


def _learned(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if name not in program.GIVEN)


def _forward_otherwise(*arrays, settings, names, otherwise, own_gradient=True):
    """The kernel's forward pass by another layout; the statistics are 0, because nothing reads them."""

    def outputs(*arrays):
        problem = settings.problem(dict(zip(names, arrays, strict=True)))
        return attend(problem, otherwise(problem), RowLoop, own_gradient)[0]

    shapes = _shapes_forward(*arrays, settings=settings, names=names, otherwise=otherwise)
    return jax.vmap(outputs)(*arrays).astype(shapes[0].dtype), jnp.zeros(shapes[1].shape, shapes[1].dtype)


def _backward_otherwise(*given, settings, names, otherwise):
    *arrays, _, _, cotangent = given
    arrays = dict(zip(names, arrays, strict=True))

    def outputs(learned):
        both = arrays | learned
        given = (both[name] for name in names)
        return _forward_otherwise(*given, settings=settings, names=names, otherwise=otherwise)[0]

    (cotangents,) = jax.vjp(outputs, {name: arrays[name] for name in _learned(names)})[1](cotangent)
    return [cotangents[name] for name in _learned(names)]


def _forward(*arrays, settings, names, otherwise):
    return program.forward(settings, dict(zip(names, arrays, strict=True)))


def _backward(*given, settings, names, otherwise):
    *arrays, outputs, statistics, cotangent = given
    named = dict(zip(names, arrays, strict=True))
    cotangents = program.backward(settings, named, outputs, statistics, cotangent)
    return [cotangents[name].astype(named[name].dtype) for name in _learned(names)]


def _shapes_forward(*arrays, settings, names, otherwise):
    named = dict(zip(names, arrays, strict=True))
    dtype = float32_or_better(*(named[name] for name in _learned(names)))
    value = arrays[names.index("value")]
    return jax.core.ShapedArray(value.shape, dtype), jax.core.ShapedArray((*value.shape[:-1], 2), dtype)


def _shapes_backward(*given, settings, names, otherwise):
    named = dict(zip(names, given[: len(names)], strict=True))
    return [jax.core.ShapedArray(named[name].shape, named[name].dtype) for name in _learned(names)]


def _operation(name: str, kernel: Callable, otherwise: Callable, shapes: Callable, **differentiable) -> Primitive:
    """An operation that runs `kernel` on a CPU and `otherwise` elsewhere; both take arrays with one leading axis.

    Its derivative is that of `otherwise` with the options `differentiable`.
    """
    operation = Primitive(f"native_attention_{name}")
    operation.multiple_results = True
    operation.def_abstract_eval(shapes)

    def evaluated(*arrays, **parameters):
        with jax.disable_jit(False):  # without jit an operation has no program
            return _jitted(operation, tuple(parameters.items()))(*arrays)

    operation.def_impl(evaluated)

    def on_cpu(context, *arrays, **parameters):
        exported = context.module_context.lowering_parameters.for_export
        function = otherwise if exported else kernel
        return mlir.lower_fun(functools.partial(function, **parameters), multiple_results=True)(context, *arrays)

    mlir.register_lowering(operation, mlir.lower_fun(otherwise, multiple_results=True))
    mlir.register_lowering(operation, on_cpu, platform="cpu")

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


@functools.cache
def _jitted(operation, parameters):
    return jax.jit(functools.partial(operation.bind, **dict(parameters)))


forward_operation = _operation("forward", _forward, _forward_otherwise, _shapes_forward, own_gradient=False)
backward_operation = _operation("backward", _backward, _backward_otherwise, _shapes_backward)


def _check(dtype: str) -> None:
    """RuntimeError unless the kernel agrees with "reference", gradients included, on a small problem with all parts."""
    shape, b, h, d = (3, 13), 2, 2, 5
    rng = np.random.default_rng(0)
    n, offsets = grid.num_positions(shape), grid.relative_shape(shape)
    sizes = {"query": (b, n, h, d), "key": (b, n, h, d), "value": (b, n, h, d), "relative_encoding": (*offsets, h, d)}
    sizes |= {"content_bias": (h, d), "position_bias": (h, d), "relative_bias": (*offsets, h)}
    with jax.ensure_compile_time_eval():
        arrays = {name: jnp.asarray(rng.normal(size=size), dtype) for name, size in sizes.items()}
        arrays["sigma"] = jnp.asarray([[0.3, 0.2], [0.6, 0.1]], dtype)
        given = {"key_mask": jnp.asarray(rng.random((b, n)) < 0.8)}
        given["segment_ids"] = jnp.asarray(rng.integers(3, size=(b, n)), jnp.int32)

        def results(layout):
            def attend(arrays):
                return layout(Problem(**arrays, grid_shape=shape, **given))[0]

            outputs, pull_back = jax.vjp(attend, arrays)
            return [outputs, *jax.tree.leaves(pull_back(jnp.cos(outputs)))]

        for found, expected in zip(results(native_attention), results(reference_attention), strict=True):
            bound = math.sqrt(float(jnp.finfo(dtype).eps)) * float(jnp.abs(expected).max())
            if not float(jnp.abs(found - expected).max()) <= bound:
                raise RuntimeError("the compiled kernel is not right")
