"""The programs of a fused kernel for a GPU: what each starts with, one a block or one a step between blocks."""

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
    """Outputs of these shapes, filled by `body(program, memory, outputs)` in each of so many programs."""

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
    """The block that a program is for.

    Attributes:
      example, head: of the batch, and of the heads.
      block: its coordinates among the blocks of the grid.
      first_page: of the same example and head, of operands that have a page a block.
      span: of the head.
    """

    example: Array
    head: Array
    block: list[Array]
    first_page: Array
    span: Span


def begin(plan: Plan, memory: SharedMemory, program: Array, own: Sequence[str]) -> Home:
    """The block of a program, whose `own` operands are brought to shared memory for all of it."""
    example, head, block = unravel(program, (plan.batch, plan.heads, plan.blocks.count))
    memory.fetch(dict.fromkeys(own, program))
    for name in own:
        memory.need(name)
    span = span_of(plan, memory.refs, head)
    return Home(example, head, unravel(block, plan.blocks.counts), program - block, span)
