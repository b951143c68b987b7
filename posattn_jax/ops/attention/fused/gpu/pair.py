"""The common parts of the fused GPU kernels: shared memory, which blocks meet, and the logits of a pair of blocks."""

import dataclasses
import math
import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from posattn_jax.axes import Array, Sizes
from posattn_jax.ops import scores
from posattn_jax.ops.attention.fused.blocks import BLOCK, Blocks
from posattn_jax.ops.attention.fused.gpu.entries import PAIR
from posattn_jax.ops.attention.fused.gpu.warpgroup import Warpgroup, swizzle_of


@dataclasses.dataclass(frozen=True)
class Operands:
    """The contents of a kernel's shared memory.

    Attributes:
      names: the names of the operands.
      turns: operands that may use the page of another operand if memory is short.
      stages: whether there is an operand that the kernel computes itself.
      totals: the number of pages of sums over all iterations.
    """

    names: tuple[str, ...]
    turns: dict[str, str]
    stages: bool
    totals: int = 0


@dataclasses.dataclass(frozen=True)
class Plan:
    """The properties of a problem that are known when its kernels are compiled. Layers with equal plans share kernels.

    Attributes:
      warpgroup: the operations that kernels consist of, and how the grid is cut.
      batch, heads: b and h.
      widths: the padded number of features per page, for each operand that the problem has.
      scaling: `scale`, in units of ln 2 like all logits, because exp2 is an instruction.
      multiply: whether the terms are multiplied by G; otherwise ln G is added.
      is_causal: as in `relative_attention`.
      masks_span: whether keys outside the box are masked.
      masks_offsets: as in `Problem`.
      exponents: the dimensions (i, j) of ln G = sum_m coefficient_m offset_i offset_j; none without a span.
      sigma_heads: 1 if all heads share one span, else h.
      addend_batch: the batch size of `key_addend`, which is added to the logits; 0 if there is none.
      reach: the most steps between two blocks that meet, in each dimension.
      shared: whether operands that are not needed at once take turns in shared memory.
      shared_bytes: the bytes of shared memory that a kernel may use.
    """

    warpgroup: Warpgroup
    batch: int
    heads: int
    widths: dict[str, int] = dataclasses.field(hash=False)
    scaling: float
    multiply: bool
    is_causal: bool
    masks_span: bool
    masks_offsets: bool
    exponents: tuple[tuple[int, int], ...]
    sigma_heads: int
    addend_batch: int
    reach: Sizes
    shared: bool
    shared_bytes: int

    @property
    def blocks(self) -> Blocks:
        return self.warpgroup.blocks

    @property
    def is_separable(self) -> bool:
        """Whether G is a product of functions of the offset along one dimension each."""
        return all(i == j for i, j in self.exponents)

    @property
    def swizzle(self) -> int:
        return swizzle_of(*self.widths.values())

    @property
    def steps(self) -> Sizes:
        """The number of different steps between two blocks that meet, in each dimension."""
        return tuple(2 * reach + 1 for reach in self.reach)

    @property
    def encodings(self) -> list[str]:
        """The names of the pages of a band."""
        return [f"encoding{c}" for c in range(self.blocks.chunks)] if "encoding" in self.widths else []

    def present(self, *names: str) -> list[str]:
        """The operands in `names` that the problem has, and the pages of a band."""
        return [name for name in names if name in self.widths] + self.encodings

    def width(self, name: str) -> int:
        return self.widths["encoding" if name.startswith("encoding") else name]

    def slot(self, name: str, turns: dict[str, str]) -> str:
        """The name of an operand's page of shared memory; `turns` says which operands may share one."""
        if not self.shared:
            return name
        return "encoding" if name.startswith("encoding") else turns.get(name, name)

    def scratch(self, operands: Operands) -> dict[str, Any]:
        """Shared memory for operands, for the skew, for an operand that the kernel computes, and for sums."""
        pages = {self.slot(name, operands.turns): self.width(name) for name in operands.names}
        buffers = {name: self.warpgroup.page(width, self.swizzle) for name, width in pages.items()}
        if operands.stages:
            buffers["staged"] = self.warpgroup.page(BLOCK, self.swizzle)
        if self.encodings:
            buffers["skew"] = self.warpgroup.skew.buffer
        if operands.totals:
            buffers["totals"] = self.warpgroup.sums(operands.totals, self.widths["encoding"])
        return buffers

    def bytes(self, operands: Operands) -> int:
        """The bytes of shared memory that a kernel needs."""
        return sum(math.prod(page.shape) * jnp.dtype(page.dtype).itemsize for page in self.scratch(operands).values())


class SharedMemory:
    """The operands of a kernel, copied from global to shared memory when they are needed.

    `fetch` starts the copies of operands that have a page of their own. `need` waits for an operand; if operands take
    turns in a page and another was there last, it copies the operand first. `index` says, for each operand, which of
    its pages in global memory to copy.
    """

    def __init__(self, plan: Plan, operands: Operands, refs: dict[str, Any], scratch: dict[str, Any]):
        self.plan = plan
        self.operands = operands
        self.refs = refs
        self.scratch = scratch
        self.index: dict[str, Any] = {}
        self.holds: dict[str, str] = {}
        self.pending: list[str] = []  # in the order in which their copies were started

    def fetch(self, index: dict[str, Any]) -> None:
        self.index |= index
        self.holds = {slot: name for slot, name in self.holds.items() if name not in index}
        slots = [self._slot(name) for name in self.operands.names]
        for name in index:
            if slots.count(self._slot(name)) == 1:
                self._copy(name)

    def need(self, name: str) -> Any:
        slot = self._slot(name)
        if self.holds.get(slot) != name:
            self._copy(name)
        if name in self.pending:
            later = len(self.pending) - 1 - self.pending.index(name)
            self.plan.warpgroup.wait(self.scratch.get("barriers"), self.operands.names.index(name), later)
            self.pending.remove(name)
        return self.scratch[slot]

    def _slot(self, name):
        return self.plan.slot(name, self.operands.turns)

    def _copy(self, name):
        assert name not in self.pending, f"{name} is copied again, and nothing has waited for it"
        source, which = self.refs["encoding" if name.startswith("encoding") else name], self.operands.names.index(name)
        page = self.scratch[self._slot(name)]
        self.plan.warpgroup.copy(source.at[self.index[name]], page, self.scratch.get("barriers"), which)
        self.holds[self._slot(name)] = name
        self.pending.append(name)

    def loop(self, start: Any, stop: Any, iteration: Callable, carry: Any) -> Any:
        """Runs carry = iteration(k, carry) for start <= k < stop; an iteration must wait for all copies it starts."""

        def body(index, carry):
            carry = iteration(index, carry)
            self.check_waited()
            return carry

        self.check_waited()
        return lax.fori_loop(start, stop, body, carry)

    def check_waited(self) -> None:
        """AssertionError, while a kernel is traced, if there is a copy that nothing has waited for."""
        assert not self.pending, f"copied, and nothing has waited for: {', '.join(self.pending)}"


@dataclasses.dataclass
class Span:
    """The span of a head: half-spans in positions, and the coefficients of ln G."""

    half: list[Array]
    coefficients: list[Array]


def span_of(plan: Plan, refs: dict[str, Any], head: Array) -> Span:
    """The span of a head, read from global memory."""
    which = head if plan.sigma_heads > 1 else jnp.int32(0)
    p, m = len(plan.blocks.tile), len(plan.exponents)
    half = [refs["half"][which * p + k] for k in range(p)]
    return Span(half, [refs["coefficients"][which * m + k] for k in range(m)])


def unravel(index: Array, counts: Sequence[Any]) -> list[Array]:
    """The coordinates of a row-major index."""
    where = []
    for n in reversed(counts):
        n = jnp.int32(n)
        where.append(lax.rem(index, n))
        index = lax.div(index, n)
    return where[::-1]


def ravel(where: Sequence[Array], counts: Sequence[int]) -> Array:
    """The inverse of `unravel`."""
    index = jnp.int32(0)
    for coordinate, n in zip(where, counts, strict=True):
        index = index * n + coordinate
    return index


def over_neighbours(memory: SharedMemory, span: Span, block: Sequence[Array], iteration: Callable, carry: Any) -> Any:
    """Runs carry = iteration(neighbour, carry) for each block with a position within the half-spans of a block."""
    blocks = memory.plan.blocks
    first, counts = [], []  # in each dimension
    for coordinate, t, half, size in zip(block, blocks.tile, span.half, blocks.grid_shape, strict=True):
        low = jnp.maximum(coordinate * t - half, 0)
        high = jnp.minimum(coordinate * t + (t - 1) + half, size - 1)
        shift = t.bit_length() - 1
        first.append(low >> shift)
        counts.append((high >> shift) - first[-1] + 1)

    def body(index, carry):
        return iteration([low + k for low, k in zip(first, unravel(index, counts), strict=True)], carry)

    return memory.loop(jnp.int32(0), reduce(operator.mul, counts), body, carry)


@dataclasses.dataclass
class Logits:
    """The logits of a pair of blocks and their parts, each [64 64].

    Attributes:
      logits: G * scale * terms, or scale * terms + ln G, in units of ln 2; very negative for masked keys.
      factor: the factor of the terms in the logits.
      products: offset_i offset_j of each coefficient of ln G.
    """

    logits: Array
    factor: Any
    products: list[Any]


def logits_of(plan: Plan, memory: SharedMemory, span: Span, query: Sequence[Array], key: Sequence[Array], addend: Any):
    """The logits of a block of queries and a block of keys, given by their coordinates; operands must be fetched."""
    warpgroup, blocks = plan.warpgroup, plan.blocks
    terms = None
    if plan.encodings:
        chunks = (
            warpgroup.product(memory.need("position_query"), memory.need(name), transpose_b=True)
            for name in plan.encodings
        )
        terms = warpgroup.skew.skewed(memory.scratch["skew"], chunks)
    if "key" in plan.widths:
        content = (memory.need("content_query"), memory.need("key"))
        terms = warpgroup.product(*content, transpose_b=True, add_to=terms)
    assert terms is not None, "there is nothing to attend by"
    within, keys = warpgroup.skew.offsets()
    offsets = [(z - y) * t + x for t, y, z, x in zip(blocks.tile, query, key, within, strict=True)]

    floats = [offset.astype(warpgroup.dtype) for offset in offsets]
    products = [floats[i] * floats[j] for i, j in plan.exponents]
    logarithms = list(map(operator.mul, products, span.coefficients))
    factor = plan.scaling
    if plan.multiply and plan.is_separable:  # a thread has few different offsets per dimension
        factor = reduce(operator.mul, map(jnp.exp2, logarithms), plan.scaling)
    elif plan.multiply:
        factor = plan.scaling * jnp.exp2(reduce(operator.add, logarithms))
    logits = factor * terms if plan.multiply else reduce(operator.add, logarithms, factor * terms)
    masks = []
    if plan.masks_span:
        masks += [abs(offset) <= half for offset, half in zip(offsets, span.half, strict=True)]
    if plan.is_causal:
        strides = [math.prod(blocks.grid_shape[k + 1 :]) for k in range(len(offsets))]
        masks.append(reduce(operator.add, map(operator.mul, offsets, strides)) <= 0)
    for t, j, z, size in zip(blocks.tile, keys, key, blocks.grid_shape, strict=True):
        if size % t:
            masks.append(z * t + j < size)
    masked = jnp.asarray(scores.MASKED, warpgroup.dtype)
    if masks:
        logits = jnp.where(reduce(operator.and_, masks), logits, masked)
    if plan.masks_offsets:
        logits = jnp.where(terms <= jnp.asarray(scores.LOWEST, warpgroup.dtype), masked, logits)
    if addend is not None:
        logits += warpgroup.spread(addend, PAIR, 1)
    return Logits(logits, factor, products)


def addend_of(plan: Plan, refs: dict[str, Any], example: Array, key: Sequence[Array]) -> jax.Array | None:
    """The numbers that are added to the logits of the keys of a block, or None."""
    if not plan.addend_batch:
        return None
    example = example if plan.addend_batch > 1 else jnp.int32(0)
    return plan.warpgroup.load(refs["key_addend"], example * plan.blocks.count + ravel(key, plan.blocks.counts), 1)


def encoding_pages(plan: Plan, head: Array, query: Sequence[Array], key: Sequence[Array]) -> dict[str, Array]:
    """The indices of the pages of two blocks' band, by name."""
    step = [z - y + reach for y, z, reach in zip(query, key, plan.reach, strict=True)]
    first = (head * math.prod(plan.steps) + ravel(step, plan.steps)) * plan.blocks.chunks
    return {name: first + chunk for chunk, name in enumerate(plan.encodings)}
