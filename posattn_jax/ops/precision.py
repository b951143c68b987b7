"""Operands: arrays from what is like one; and the dtype and axes of mixed ones, of which none is promoted implicitly.

So it runs with `jax_numpy_dtype_promotion="strict"` and `jax_numpy_rank_promotion="raise"` too.
"""

import contextlib
from typing import Any, overload

import jax
import jax.numpy as jnp

from posattn_jax.axes import Array
from posattn_jax.system.compat import Tracer


@overload
def as_array(x: None, floating: bool = ...) -> None: ...
@overload
def as_array(x: Any, floating: bool = ...) -> Array: ...
def as_array(x: Any, floating: bool = False) -> Any:
    """A list, number or NumPy array as an array, whose values stay known while JAX traces; None and arrays as is.

    With `floating`, integers become JAX's default float.

    Raises:
      ValueError: complex numbers.
    """
    if x is None:
        return None
    if not isinstance(x, jax.Array):
        is_traced = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(x))
        with contextlib.nullcontext() if is_traced else jax.ensure_compile_time_eval():
            x = jnp.asarray(x)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        raise ValueError(f"an array has dtype {x.dtype}: expected real numbers")
    if floating and not jnp.issubdtype(x.dtype, jnp.floating):
        return x.astype(jnp.result_type(float))
    return x


def promoted(*operands: Any) -> Any:
    """The dtype that JAX's standard rules give arrays and dtypes."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.result_type(*operands)


def float32_or_better(*operands: Any) -> Any:
    """The dtype of `operands`, and at least float32."""
    return promoted(jnp.float32, *operands)


def same_dtype(*arrays: Any) -> list[Array]:
    """The arrays in the dtype of all."""
    dtype = promoted(*arrays)
    return [jnp.asarray(array, dtype) for array in arrays]


def same_ndim(*arrays: Any) -> list[Array]:
    """The arrays with as many axes as the one that has most: new ones come first."""
    most = max(jnp.ndim(array) for array in arrays)
    return [jnp.expand_dims(array, tuple(range(most - jnp.ndim(array)))) for array in arrays]


def aligned(*arrays: Any) -> list[Array]:
    """The arrays with the same dtype and number of axes, so that they broadcast against each other."""
    return same_ndim(*same_dtype(*arrays))


def einsum(subscripts: str, *arrays: Any) -> Array:
    """`jnp.einsum` of the arrays in the dtype of all."""
    return jnp.einsum(subscripts, *same_dtype(*arrays))


def plus(x: Any, y: Any) -> Array:
    """x + y, `aligned`."""
    x, y = aligned(x, y)
    return x + y


def minus(x: Any, y: Any) -> Array:
    """x - y, `aligned`."""
    x, y = aligned(x, y)
    return x - y


def times(x: Any, y: Any) -> Array:
    """x y, `aligned`."""
    x, y = aligned(x, y)
    return x * y
