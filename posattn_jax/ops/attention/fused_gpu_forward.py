"""The fused forward kernel: a block of queries meets the blocks of keys within its span, in one loop."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from posattn_jax.axes import Array
from posattn_jax.ops import scores
from posattn_jax.ops.attention.fused_blocks import BLOCK
from posattn_jax.ops.attention.fused_gpu_pair import (
    PAIR,
    Memory,
    Operands,
    Plan,
    addend_of,
    encoding_pages,
    logits_of,
    over_neighbours,
    ravel,
    span_of,
    unravel,
)
from posattn_jax.ops.attention.fused_warpgroup import launch


def forward_operands(plan: Plan) -> Operands:
    """What the kernel holds in shared memory."""
    names = plan.present("content_query", "position_query", "key", "value")
    return Operands(tuple(names), turns={"value": "key"}, makes=False)


def forward(plan: Plan, inputs: dict[str, Array]) -> list[Array]:
    """Outputs [pages 64 d], the largest logit and 1 / total [pages 64] of every query."""
    warpgroup, blocks = plan.warpgroup, plan.blocks
    operands = forward_operands(plan)
    queries = [name for name in operands.names if name.endswith("query")]
    width = plan.widths["value"]

    def kernel(*all_refs: Any, **scratch: Any) -> None:
        *ins, outputs, largest_ref, inverse_ref = all_refs
        refs = dict(zip(inputs, ins, strict=True))
        program = lax.axis_index("program")
        example, head, block = unravel(program, (plan.batch, plan.heads, blocks.count))
        query = unravel(block, blocks.counts)
        span = span_of(plan, refs, head)
        memory = Memory(plan, operands, refs, scratch)
        memory.fetch(dict.fromkeys(queries, program))
        for name in queries:
            memory.need(name)

        def trip(key, carry):
            largest, total, sums = carry
            page = program - block + ravel(key, blocks.counts)
            window = encoding_pages(plan, head, query, key)
            memory.fetch(window | {name: page for name in ("key", "value") if name in plan.widths})
            logits = logits_of(plan, memory, span, query, key, addend_of(plan, refs, example, key)).logits
            new = jnp.maximum(largest, logits.max(1))
            weights = jnp.exp(logits - warpgroup.spread(new, PAIR))
            decay = jnp.exp(largest - new)
            sums = sums * warpgroup.spread(decay, sums.shape)
            sums = warpgroup.product(weights, memory.need("value"), add_to=sums)
            return new, total * decay + weights.sum(1), sums

        start = (
            warpgroup.full((BLOCK,), scores.LOWEST),
            warpgroup.full((BLOCK,), 0.0),
            warpgroup.full((BLOCK, width), 0.0),
        )
        largest, total, sums = over_neighbours(plan, span, query, trip, start)
        inverse = 1 / jnp.where(total == 0, jnp.asarray(1, total.dtype), total)
        outputs[program] = sums * warpgroup.spread(inverse, sums.shape)
        largest_ref[program] = largest
        inverse_ref[program] = inverse

    programs = plan.batch * plan.heads * blocks.count
    shapes = ((programs, BLOCK, width), (programs, BLOCK), (programs, BLOCK))
    made = [jax.ShapeDtypeStruct(shape, warpgroup.dtype) for shape in shapes]
    return launch(kernel, made, programs, plan.scratch(operands), len(operands.names), warpgroup)(*inputs.values())
