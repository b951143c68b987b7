"""How many floating-point operations a function takes, or a model, every step of every loop counted.

The compiler's own count, `cost_analysis`, has the body of a loop once, and so cannot compare programs with and without
loops.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

# Of floating-point numbers too, these only move them.
MOVES = (
    "broadcast_in_dim",
    "concatenate",
    "convert_element_type",
    "copy",
    "copy_p",
    "dynamic_slice",
    "dynamic_update_slice",
    "gather",
    "iota",
    "optimization_barrier",
    "pad",
    "reshape",
    "reduce_precision",
    "rev",
    "scatter",
    "select_n",
    "sharding_constraint",
    "slice",
    "split",
    "squeeze",
    "stop_gradient",
    "transpose",
    "bitcast_convert_type",
)
REDUCTIONS = ("reduce_", "cumsum", "cumlogsumexp", "cummax", "argmax", "argmin", "scatter-add", "scatter_add")


def count(function: Callable, *arguments: Any) -> int:
    """Of function(*arguments), which are arrays or their shapes: a product of matrices has two a multiply-add, an
    elementwise function of any kind one for every number that it makes, a sum one for every number that goes into it.

    Raises:
      ValueError: a loop whose number of steps is known only as it runs.
    """
    return _of_jaxpr(jax.make_jaxpr(function)(*arguments).jaxpr, _of_any)


def product_flops(function: Callable, *arguments: Any) -> int:
    """As `count`, of products of matrices and convolutions alone."""
    return _of_jaxpr(jax.make_jaxpr(function)(*arguments).jaxpr, _of_product)


def update_flops(loss: Callable, params: Any, batch: Any) -> int:
    """The products of a model in a micro-batch of an update: the forward pass once, and twice as many backward.

    What a layout computes again or in vain does not count: `loss` is to be that of the layout "reference", where all
    pairs are met. A layout that leaves pairs out can need less than this.
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
    return sum(inner) if inner else of_one(equation)  # inner: a function in a function


def _of_any(equation: Any) -> int:
    """An equation without others in it."""
    name = equation.primitive.name
    outputs = [variable.aval for variable in equation.outvars if jnp.issubdtype(variable.aval.dtype, jnp.inexact)]
    if not outputs or name in MOVES:
        return 0
    given = [variable.aval.shape for variable in equation.invars]
    if name.startswith(REDUCTIONS):
        return math.prod(given[-1] if name.startswith("scatter") else given[0])
    return _of_product(equation) or sum(math.prod(each.shape) for each in outputs)


def _of_product(equation: Any) -> int:
    """The same of a product of matrices or a convolution; 0 of others."""
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
    if isinstance(value, core.ClosedJaxpr):
        return [value.jaxpr]
    return [value] if isinstance(value, core.Jaxpr) else []
