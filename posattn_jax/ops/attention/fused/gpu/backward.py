"""The fused backward kernels. With A the weights, which are computed again, L the logits and O the outputs:

dV_s = sum_t A_ts dO_t        dL_ts = A_ts (dO_t . V_s - dO_t . O_t)        dterms = factor dL

There are three kernels. The first has a program for each block of queries, which computes the cotangents of the queries
and of the coefficients of ln G, as sums over the block's pairs. The second has a program for each block of keys, which
computes the cotangents of keys and values. The third has a program for each step between blocks, which computes the
cotangent of its band of encodings. If there are few such programs, the pairs of a step are split over several. If a
band does not fit into shared memory, it is split too.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from posattn_jax.axes import Array
from posattn_jax.ops.attention.fused.blocks import BLOCK
from posattn_jax.ops.attention.fused.gpu.entries import PAIR
from posattn_jax.ops.attention.fused.gpu.pair import (
    Logits,
    Operands,
    Plan,
    SharedMemory,
    addend_of,
    encoding_pages,
    logits_of,
    over_neighbours,
    ravel,
    span_of,
    unravel,
)
from posattn_jax.ops.attention.fused.gpu.program import begin, run

# The number of programs that keeps a GPU busy, and the pairs of blocks that justify one more program.
ENOUGH_PROGRAMS, ENOUGH_PAIRS = 512, 16


@functools.partial(jax.jit, static_argnames="plan")
def backward(plan: Plan, inputs: dict[str, Array]) -> dict[str, Array]:
    """The cotangents: those of features as pages [pages 64 d], those of coefficients [pages m] yet to be summed."""
    cotangents = query_cotangents(plan, inputs) | side_cotangents(plan, inputs)
    return cotangents | encoding_cotangents(plan, inputs) if plan.encodings else cotangents


def backward_operands(plan: Plan) -> list[Operands]:
    """The contents of shared memory for each kernel."""
    names = tuple(plan.present("content_query", "position_query", "cotangent", "key", "value"))
    kernels = [
        Operands(names, turns={"value": "key"}, stages=False),
        Operands(names, turns={"content_query": "query", "position_query": "query", "cotangent": "query"}, stages=True),
    ]
    return [*kernels, encoding_operands(plan, 1)] if plan.encodings else kernels


def encoding_operands(plan: Plan, totals: int) -> Operands:
    """The same for a kernel that computes the cotangents of `totals` chunks of a band."""
    names = tuple(plan.present("content_query", "position_query", "cotangent", "key", "value"))
    return Operands(names, turns={"value": "key", "cotangent": "content_query"}, stages=True, totals=totals)


def statistics_of(plan: Plan, memory: SharedMemory, page: Array) -> list[Array]:
    """The largest logit, 1 / total and dO . O of a block of queries, [64] each."""
    return [plan.warpgroup.load(memory.refs[name], page, 0) for name in ("largest", "inverse", "removed")]


def weights_of(plan: Plan, memory: SharedMemory, pair: Logits, statistics: list[Array]) -> tuple[Array, Array]:
    """A and dL of a pair of blocks, [64 64], from its logits."""
    warpgroup = plan.warpgroup
    largest, inverse, removed = (warpgroup.spread(x, PAIR) for x in statistics)
    weights = jnp.exp2(pair.logits - largest) * inverse
    d_weights = warpgroup.product(memory.need("cotangent"), memory.need("value"), transpose_b=True)
    return weights, weights * (d_weights - removed)


def query_cotangents(plan: Plan, inputs: dict[str, Array]) -> dict[str, Array]:
    """The cotangents of content queries, position queries, and the coefficients of ln G."""
    warpgroup, blocks = plan.warpgroup, plan.blocks
    operands = backward_operands(plan)[0]
    queries = [name for name in ("content_query", "position_query") if name in plan.widths]
    own = [*queries, "cotangent"]
    num_coefficients = len(plan.exponents)

    def body(program: Array, memory: SharedMemory, outputs: list[Any]) -> None:
        home, skew = begin(plan, memory, program, own), memory.scratch.get("skew")
        statistics = statistics_of(plan, memory, program)

        def iteration(key, carry):
            d_queries, d_coefficients = dict(carry[0]), list(carry[1])
            page = home.first_page + ravel(key, blocks.counts)
            pages = encoding_pages(plan, home.head, home.block, key)
            memory.fetch(pages | {name: page for name in ("key", "value") if name in plan.widths})
            addend = addend_of(plan, memory.refs, home.example, key)
            pair = logits_of(plan, memory, home.span, home.block, key, addend)
            _, d_logits = weights_of(plan, memory, pair, statistics)
            d_terms = d_logits * pair.factor
            if "key" in plan.widths:
                d = d_queries["content_query"]
                d_queries["content_query"] = warpgroup.product(d_terms, memory.need("key"), add_to=d)
            if num_coefficients:
                d_log = d_logits * pair.logits if plan.multiply else d_logits
                d_coefficients = [d + (d_log * x).sum(1) for d, x in zip(d_coefficients, pair.products, strict=True)]
            if plan.encodings:
                by_encoding = warpgroup.skew.unskewed(skew, d_terms, range(blocks.chunks))
                for name, columns in zip(plan.encodings, by_encoding, strict=True):
                    d = d_queries["position_query"]
                    d_queries["position_query"] = warpgroup.product(columns, memory.need(name), add_to=d)
            return d_queries, d_coefficients

        start = {name: warpgroup.full((BLOCK, plan.widths[name]), 0.0) for name in queries}
        carry = start, [warpgroup.full((BLOCK,), 0.0) for _ in range(num_coefficients)]
        d_queries, d_coefficients = over_neighbours(memory, home.span, home.block, iteration, carry)
        for name in queries:
            outputs.pop(0)[program] = d_queries[name]
        for m, d in enumerate(d_coefficients):
            outputs[0][program * num_coefficients + m] = d

    programs = plan.batch * plan.heads * blocks.count
    shapes = [(programs, BLOCK, plan.widths[name]) for name in queries]
    shapes += [(programs * num_coefficients, BLOCK)] if num_coefficients else []
    arrays = run(plan, operands, inputs, programs, shapes, body)
    cotangents = dict(zip([*queries, "coefficients"], arrays, strict=False))
    if num_coefficients:
        cotangents["coefficients"] = cotangents["coefficients"].reshape(programs, num_coefficients, BLOCK).sum(-1)
    return cotangents


def side_cotangents(plan: Plan, inputs: dict[str, Array]) -> dict[str, Array]:
    """The cotangents of the values, and of the keys if there are any."""
    warpgroup, blocks = plan.warpgroup, plan.blocks
    operands = backward_operands(plan)[1]
    own = [name for name in ("value", "key") if name in plan.widths]
    queries = [name for name in ("content_query", "position_query", "cotangent") if name in plan.widths]

    def body(program: Array, memory: SharedMemory, outputs: list[Any]) -> None:
        home = begin(plan, memory, program, own)
        staged, addend = memory.scratch["staged"], addend_of(plan, memory.refs, home.example, home.block)

        def iteration(query, carry):
            carry = dict(carry)
            page = home.first_page + ravel(query, blocks.counts)
            memory.fetch(encoding_pages(plan, home.head, query, home.block) | dict.fromkeys(queries, page))
            pair = logits_of(plan, memory, home.span, query, home.block, addend)
            weights, d_logits = weights_of(plan, memory, pair, statistics_of(plan, memory, page))
            factors = {"value": (weights, "cotangent"), "key": (d_logits * pair.factor, "content_query")}
            for name in own:
                factor, other = factors[name]
                warpgroup.store(staged, factor)
                d = carry[name]
                carry[name] = warpgroup.product(staged, memory.need(other), transpose_a=True, add_to=d)
            return carry

        start = {name: warpgroup.full((BLOCK, plan.widths[name]), 0.0) for name in own}
        carry = over_neighbours(memory, home.span, home.block, iteration, start)
        for name, output in zip(own, outputs, strict=True):
            output[program] = carry[name]

    programs = plan.batch * plan.heads * blocks.count
    shapes = [(programs, BLOCK, plan.widths[name]) for name in own]
    return dict(zip(own, run(plan, operands, inputs, programs, shapes, body), strict=True))


def encoding_cotangents(plan: Plan, inputs: dict[str, Array]) -> dict[str, Array]:
    """The cotangents of the bands of encodings."""
    width, chunks = plan.widths["encoding"], plan.blocks.chunks
    at_once = max(n for n in range(1, chunks + 1) if plan.bytes(encoding_operands(plan, n)) <= plan.shared_bytes)
    parts = [range(first, min(first + at_once, chunks)) for first in range(0, chunks, at_once)]
    bands = jnp.concatenate([_some_encodings(plan, inputs, part) for part in parts], -3)
    return {"encoding": bands.reshape(-1, BLOCK, width)}


def _some_encodings(plan: Plan, inputs: dict[str, Array], chunks: range) -> Array:
    """The cotangents of some chunks of every band: [bands, chunks, 64, d].

    If there are few bands, the pairs of blocks of each are split over programs. The sums are in shared memory, because
    registers have no room for them.
    """
    warpgroup, blocks = plan.warpgroup, plan.blocks
    operands = encoding_operands(plan, len(chunks))
    width, num_bands = plan.widths["encoding"], plan.heads * math.prod(plan.steps)
    shares = max(1, min(plan.batch * blocks.count // ENOUGH_PAIRS, ENOUGH_PROGRAMS // num_bands))
    moving = [name for name in operands.names if name not in plan.encodings]

    def body(program: Array, memory: SharedMemory, outputs: list[Any]) -> None:
        staged, skew, totals = (memory.scratch[name] for name in ("staged", "skew", "totals"))
        share, head, *step = unravel(program, (shares, plan.heads, *plan.steps))
        step = [k - reach for k, reach in zip(step, plan.reach, strict=True)]
        span = span_of(plan, memory.refs, head)
        # The blocks of queries that have a block of keys this step away.
        counts = [n - abs(s) for s, n in zip(step, blocks.counts, strict=True)]
        first = [jnp.maximum(-s, 0) for s in step]
        within = jnp.bool_(True)
        for s, t, half in zip(step, blocks.tile, span.half, strict=True):
            within &= abs(s) * t - (t - 1) <= half

        for n in range(len(chunks)):
            warpgroup.put(totals, n, warpgroup.full((BLOCK, width), 0.0))

        def iteration(index, carry):
            example, *where = unravel(index, (plan.batch, *counts))
            query = [low + k for low, k in zip(first, where, strict=True)]
            key = [y + s for y, s in zip(query, step, strict=True)]
            page = (example * plan.heads + head) * blocks.count
            query_page, key_page = page + ravel(query, blocks.counts), page + ravel(key, blocks.counts)
            pages = {name: key_page if name in ("key", "value") else query_page for name in moving}
            memory.fetch(encoding_pages(plan, head, query, key) | pages)
            pair = logits_of(plan, memory, span, query, key, addend_of(plan, memory.refs, example, key))
            _, d_logits = weights_of(plan, memory, pair, statistics_of(plan, memory, query_page))
            for n, columns in enumerate(warpgroup.skew.unskewed(skew, d_logits * pair.factor, chunks)):
                warpgroup.store(staged, columns)
                queries, total = memory.need("position_query"), warpgroup.take(totals, n, width)
                warpgroup.put(totals, n, warpgroup.product(staged, queries, transpose_a=True, add_to=total))
            return carry

        pairs = jnp.where(within, plan.batch * math.prod(counts[1:], start=counts[0]), 0)
        start, stop = (lax.div(n * pairs, jnp.int32(shares)) for n in (share, share + 1))
        memory.loop(start, stop, iteration, ())
        for n in range(len(chunks)):
            outputs[0][program * len(chunks) + n] = warpgroup.take(totals, n, width)

    programs = shares * num_bands
    (of_shares,) = run(plan, operands, inputs, programs, [(programs * len(chunks), BLOCK, width)], body)
    return of_shares.reshape(shares, num_bands, len(chunks), BLOCK, width).sum(0)
