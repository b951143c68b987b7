"""The programs of a fused GPU kernel, one per block or per step between blocks, and how they begin."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax

from posattn_jax.axes import Array
from posattn_jax.ops.attention.fused.gpu.pair import Operands, Plan, SharedMemory, Span, span_of, unravel
from posattn_jax.ops.attention.fused.gpu.warpgroup import launch


def run(
    plan: Plan,
    operands: Operands,
    inputs: dict[str, Array],
    programs: int,
    shapes: Sequence[tuple[int, ...]],
    body: Callable[[Array, SharedMemory, list[Any]], None],
) -> list[Array]:
    """Outputs of the given shapes, which `body(program, memory, outputs)` fills in each of `programs` programs."""

    def kernel(*all_refs: Any, **scratch: Any) -> None:
        refs = dict(zip(inputs, all_refs, strict=False))
        memory = SharedMemory(plan, operands, refs, scratch)
        body(lax.axis_index("program"), memory, list(all_refs[len(inputs) :]))
        memory.check_waited()

    outputs = [jax.ShapeDtypeStruct(shape, plan.warpgroup.dtype) for shape in shapes]
    scratch = plan.scratch(operands)
    return launch(kernel, outputs, programs, scratch, len(operands.names), plan.warpgroup)(*inputs.values())


@dataclasses.dataclass
class Home:
    """The block that a program computes.

    Attributes:
      example, head: the indices of the example and the head.
      block: the coordinates of the block among the blocks of the grid.
      first_page: the first page of the same example and head, in operands that have one page per block.
      span: the span of the head.
    """

    example: Array
    head: Array
    block: list[Array]
    first_page: Array
    span: Span


def begin(plan: Plan, memory: SharedMemory, program: Array, own: Sequence[str]) -> Home:
    """The block of a program. Copies its `own` operands to shared memory, where they stay for the whole program."""
    example, head, block = unravel(program, (plan.batch, plan.heads, plan.blocks.count))
    memory.fetch(dict.fromkeys(own, program))
    for name in own:
        memory.need(name)
    span = span_of(plan, memory.refs, head)
    return Home(example, head, unravel(block, plan.blocks.counts), program - block, span)
