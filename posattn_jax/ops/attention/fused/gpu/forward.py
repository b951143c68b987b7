"""The fused forward kernel: a block of queries attends, in one loop, to the blocks of keys within its span."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from posattn_jax.axes import Array
from posattn_jax.ops import scores
from posattn_jax.ops.attention.fused.blocks import BLOCK
from posattn_jax.ops.attention.fused.gpu.entries import PAIR
from posattn_jax.ops.attention.fused.gpu.pair import (
    Operands,
    Plan,
    SharedMemory,
    addend_of,
    encoding_pages,
    logits_of,
    over_neighbours,
    ravel,
)
from posattn_jax.ops.attention.fused.gpu.program import begin, run


def forward_operands(plan: Plan) -> Operands:
    """The contents of the kernel's shared memory."""
    names = plan.present("content_query", "position_query", "key", "value")
    return Operands(tuple(names), turns={"value": "key"}, stages=False)


@functools.partial(jax.jit, static_argnames="plan")
def forward(plan: Plan, inputs: dict[str, Array]) -> list[Array]:
    """Outputs [pages 64 d], and the largest logit and 1 / total of every query, [pages 64] each."""
    warpgroup, blocks = plan.warpgroup, plan.blocks
    operands = forward_operands(plan)
    queries = [name for name in operands.names if name.endswith("query")]
    width = plan.widths["value"]

    def body(program: Array, memory: SharedMemory, outputs: list[Any]) -> None:
        home = begin(plan, memory, program, queries)

        def iteration(key, carry):
            largest, total, numerator = carry
            page = home.first_page + ravel(key, blocks.counts)
            pages = encoding_pages(plan, home.head, home.block, key)
            memory.fetch(pages | {name: page for name in ("key", "value") if name in plan.widths})
            addend = addend_of(plan, memory.refs, home.example, key)
            logits = logits_of(plan, memory, home.span, home.block, key, addend).logits
            new = jnp.maximum(largest, logits.max(1))
            weights = jnp.exp2(logits - warpgroup.spread(new, PAIR))
            decay = jnp.exp2(largest - new)
            numerator = numerator * warpgroup.spread(decay, numerator.shape)
            numerator = warpgroup.product(weights, memory.need("value"), add_to=numerator)
            return new, total * decay + weights.sum(1), numerator

        start = (
            warpgroup.full((BLOCK,), scores.LOWEST),
            warpgroup.full((BLOCK,), 0.0),
            warpgroup.full((BLOCK, width), 0.0),
        )
        largest, total, numerator = over_neighbours(memory, home.span, home.block, iteration, start)
        inverse = 1 / jnp.where(total == 0, jnp.asarray(1, total.dtype), total)
        results = numerator * warpgroup.spread(inverse, numerator.shape), largest, inverse
        for output, value in zip(outputs, results, strict=True):
            output[program] = value

    programs = plan.batch * plan.heads * blocks.count
    shapes = ((programs, BLOCK, width), (programs, BLOCK), (programs, BLOCK))
    return run(plan, operands, inputs, programs, shapes, body)
