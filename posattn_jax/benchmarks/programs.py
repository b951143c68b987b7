"""What is timed: functions of arrays and a cotangent, one a layout and pass."""

from collections.abc import Callable
from typing import Any

import jax

from posattn_jax.axes import Array
from posattn_jax.benchmarks.shapes import THRESHOLD, Point
from posattn_jax.ops.attention import relative_attention

# The layouts whose arrays have the size of the span: while sigma is traced they need its bound.
BOUNDED_LAYOUTS = ("patch", "window")


def make_function(
    layout: str, point: Point, arrays: dict[str, Array], backward: bool, static: bool, bounded: bool = False
) -> Callable:
    """(arrays, cotangent of the outputs) -> outputs, or outputs and the gradients of all arrays.

    Static: `arrays` has sigma still, the function's argument no longer. Bounded: every layout is told the span's bound.
    """
    fixed: dict[str, Any] = {"grid_shape": point.grid_shape, "threshold": THRESHOLD, "implementation": layout}
    if static:
        fixed["sigma"] = arrays["sigma"]
    elif bounded or layout in BOUNDED_LAYOUTS:
        fixed["span_bound"] = point.half

    return one_pass(lambda arrays: relative_attention(**arrays, **fixed), backward)


def make_cudnn_function(backward: bool) -> Callable:
    """The same for cuDNN's attention of all pairs, which knows no positions; gradients of query, key and value."""

    def attend(arrays):
        return jax.nn.dot_product_attention(arrays["query"], arrays["key"], arrays["value"], implementation="cudnn")

    return one_pass(attend, backward)


def one_pass(attend: Callable, backward: bool) -> Callable:
    """(arrays, cotangent) -> attend(arrays), or that and (the gradients of all arrays,)."""

    def forward(arrays, _):
        return attend(arrays)

    def forward_backward(arrays, cotangent):
        outputs, pull_back = jax.vjp(attend, arrays)
        return outputs, pull_back(cotangent)

    return forward_backward if backward else forward
