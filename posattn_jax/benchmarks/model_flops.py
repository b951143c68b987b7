"""The floating-point operations that a model needs, counted in what it is traced to."""

import math
from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr


def product_flops(function: Callable, *arguments: Any) -> int:
    """Those of the matrix products and convolutions of a call, which is traced and not run: 2 a multiplication.

    A loop of known length counts that often, and of the branches of a choice the largest.

    Raises:
      ValueError: it has a loop of a length that is known only at run time.
    """
    return _count(jax.make_jaxpr(function)(*arguments).jaxpr)


def update_flops(loss: Callable, params: Any, batch: Any) -> int:
    """Those of the model in a micro-batch of an update: the forward pass once, and twice as many backward.

    What a layout computes again or in vain does not count: `loss` is to be that of the layout "reference", where all
    pairs are met. A layout that leaves pairs out can need less than this.
    """
    return 3 * product_flops(loss, params, batch)


def _count(jaxpr: Jaxpr) -> int:
    return sum(_of_equation(equation) for equation in jaxpr.eqns)


def _of_equation(equation: Any) -> int:
    parameters, name = equation.params, equation.primitive.name
    if name == "dot_general":
        (contracted, _), _ = parameters["dimension_numbers"]
        shape = equation.invars[0].aval.shape
        return 2 * equation.outvars[0].aval.size * math.prod(shape[axis] for axis in contracted)
    if name == "conv_general_dilated":
        kernel = equation.invars[1].aval
        out_features = kernel.shape[parameters["dimension_numbers"].rhs_spec[0]]
        return 2 * equation.outvars[0].aval.size * kernel.size // out_features
    if name == "while":
        inner = sum(_count(parameters[part].jaxpr) for part in ("cond_jaxpr", "body_jaxpr"))
        if inner:
            raise ValueError("a loop whose length is known only at run time has products")
        return 0
    counts = [_count(inner) for inner in _inner(parameters)]
    if name == "cond":
        return max(counts)
    return sum(counts) * (parameters["length"] if name == "scan" else 1)


def _inner(parameters: dict[str, Any]) -> list[Jaxpr]:
    """The programs among an equation's parameters."""
    values = [each for value in parameters.values() for each in (value if isinstance(value, tuple) else (value,))]
    programs = [each.jaxpr if isinstance(each, ClosedJaxpr) else each for each in values]
    return [each for each in programs if isinstance(each, Jaxpr)]
