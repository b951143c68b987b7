"""Counts the floating-point operations of a function or a model, including every step of every loop.

The compiler's own count, `cost_analysis`, counts the body of a loop once. So it cannot compare programs with loops to
programs without.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from posattn_jax.system.compat import ClosedJaxpr, Jaxpr

# Operations that only move floating-point numbers, or convert them.
MOVES = """
broadcast_in_dim concatenate convert_element_type copy copy_p dynamic_slice dynamic_update_slice gather iota
optimization_barrier pad reshape reduce_precision rev scatter select_n sharding_constraint slice split squeeze
stop_gradient transpose bitcast_convert_type
"""
REDUCTIONS = ("reduce_", "cumsum", "cumlogsumexp", "cummax", "argmax", "argmin", "scatter-add", "scatter_add")


def count(function: Callable, *arguments: Any) -> int:
    """The floating-point operations of function(*arguments), where arguments are arrays or their shapes.

    A matrix product counts two per multiply-add, an elementwise function one per output, a sum one per input.

    Raises:
      ValueError: the number of a loop's steps is known only at run time.
    """
    return _of_jaxpr(jax.make_jaxpr(function)(*arguments).jaxpr, _of_any)


def product_flops(function: Callable, *arguments: Any) -> int:
    """As `count`, but only for matrix products and convolutions."""
    return _of_jaxpr(jax.make_jaxpr(function)(*arguments).jaxpr, _of_product)


def update_flops(loss: Callable, params: Any, batch: Any) -> int:
    """The FLOPs of a model's products in a micro-batch of an update: the forward pass's, and twice that backward.

    Recomputation and padding in an implementation must not count: so `loss` must use the implementation "reference",
    which computes all pairs once. One that skips pairs can need fewer FLOPs than this.
    """
    return 3 * product_flops(loss, params, batch)


def _of_jaxpr(jaxpr: Any, of_one: Callable[[Any], int]) -> int:
    return sum(_of_equation(equation, of_one) for equation in jaxpr.eqns)


def _of_equation(equation: Any, of_one: Callable[[Any], int]) -> int:
    name, parameters = equation.primitive.name, equation.params
    inner = [_of_jaxpr(each, of_one) for value in parameters.values() for each in _jaxprs(value)]
    if name == "while":
        if sum(inner):
            raise ValueError("steps known only as it runs cannot be counted: a loop's length is known only at run time")
        return 0
    if name == "scan":
        return parameters["length"] * sum(inner)
    if name == "cond":
        return max(inner)
    return sum(inner) if inner else of_one(equation)  # inner: a function inside this equation


def _of_any(equation: Any) -> int:
    """The operations of an equation that contains no others."""
    name = equation.primitive.name
    outputs = [variable.aval for variable in equation.outvars if jnp.issubdtype(variable.aval.dtype, jnp.inexact)]
    if not outputs or name in MOVES.split():
        return 0
    given = [variable.aval.shape for variable in equation.invars]
    if name.startswith(REDUCTIONS):
        return math.prod(given[-1] if name.startswith("scatter") else given[0])
    return _of_product(equation) or sum(math.prod(each.shape) for each in outputs)


def _of_product(equation: Any) -> int:
    """The operations of a matrix product or a convolution; 0 for other equations."""
    name, parameters = equation.primitive.name, equation.params
    given = [variable.aval.shape for variable in equation.invars]
    if name == "dot_general":
        (contracted, _), _ = parameters["dimension_numbers"]
        return 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(given[0][axis] for axis in contracted)
    if name == "conv_general_dilated":
        kernel, numbers = given[1], parameters["dimension_numbers"]
        return 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(kernel) // kernel[numbers.rhs_spec[0]]
    return 0


def _jaxprs(value: Any) -> list[Any]:
    """The functions in a parameter of an equation."""
    if isinstance(value, tuple | list):
        return [each for part in value for each in _jaxprs(part)]
    if isinstance(value, ClosedJaxpr):
        return [value.jaxpr]
    return [value] if isinstance(value, Jaxpr) else []
