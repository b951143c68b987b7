"""What the fused kernels for a GPU share: their memory, which blocks meet, and the logits of a block with another."""

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
    """What a kernel holds in shared memory.

    Attributes:
      names: of the operands.
      turns: an operand that may share the page of another where memory is short.
      stages: whether there is an operand that the kernel computes.
      totals: pages of sums over all iterations.
    """

    names: tuple[str, ...]
    turns: dict[str, str]
    stages: bool
    totals: int = 0


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is known of a problem when its kernels are compiled.

    Attributes:
      warpgroup: the steps that kernels are made of, and how the grid is cut.
      batch, heads: b and h.
      widths: features of a page, padded, of each operand that the problem has.
      scaling: `scale`, in units of ln 2, as all logits are: exp2 is an instruction.
      multiply: whether G is multiplied with the terms, or ln G added.
      is_causal: as in `relative_attention`.
      masks_span: whether keys outside the box are not attended.
      exponents: the dimensions (i, j) of ln G = sum_m coefficient_m offset_i offset_j; none without a span.
      sigma_heads: 1 if all heads have one span, else h.
      addend_batch: the batch size of what is added to the logits of a key; 0 if nothing is.
      reach: the most steps between two blocks that meet, in each dimension.
      shared: whether operands that are not needed at once take turns in shared memory.
      shared_bytes: of shared memory that a kernel may have.
    """

    warpgroup: Warpgroup
    batch: int
    heads: int
    widths: dict[str, int]
    scaling: float
    multiply: bool
    is_causal: bool
    masks_span: bool
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
        """How many steps there are between two blocks that meet, in each dimension."""
        return tuple(2 * reach + 1 for reach in self.reach)

    @property
    def encodings(self) -> list[str]:
        """The pages of a band."""
        return [f"encoding{c}" for c in range(self.blocks.chunks)] if "encoding" in self.widths else []

    def present(self, *names: str) -> list[str]:
        """Those of some operands that there are, and the pages of a band."""
        return [name for name in names if name in self.widths] + self.encodings

    def width(self, name: str) -> int:
        return self.widths["encoding" if name.startswith("encoding") else name]

    def slot(self, name: str, turns: dict[str, str]) -> str:
        """The page of shared memory where an operand is; `turns` says which may share one."""
        if not self.shared:
            return name
        return "encoding" if name.startswith("encoding") else turns.get(name, name)

    def scratch(self, operands: Operands) -> dict[str, Any]:
        """Shared memory for operands, for what is skewed, and for an operand that the kernel computes."""
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
        """Of shared memory."""
        return sum(math.prod(page.shape) * jnp.dtype(page.dtype).itemsize for page in self.scratch(operands).values())


class SharedMemory:
    """The operands of a kernel, brought from global to shared memory as they are needed.

    `fetch` starts the copies of operands that have a page to themselves; `need` waits for one, and copies it first
    where operands take turns in a page and another has had it. `index` says which page of its operand in global
    memory each is.
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
        """carry = iteration(k, carry) for start <= k < stop; the next one must not wait for the copies of one."""

        def body(index, carry):
            carry = iteration(index, carry)
            self.check_waited()
            return carry

        self.check_waited()
        return lax.fori_loop(start, stop, body, carry)

    def check_waited(self) -> None:
        """An AssertionError, while a kernel is traced, for a copy that nothing has waited for."""
        assert not self.pending, f"copied, and nothing has waited for: {', '.join(self.pending)}"


@dataclasses.dataclass
class Span:
    """The span of a head: half-spans in positions, and the coefficients of ln G."""

    half: list[Array]
    coefficients: list[Array]


def span_of(plan: Plan, refs: dict[str, Any], head: Array) -> Span:
    """Read from global memory."""
    which = head if plan.sigma_heads > 1 else jnp.int32(0)
    p, m = len(plan.blocks.tile), len(plan.exponents)
    half = [refs["half"][which * p + k] for k in range(p)]
    return Span(half, [refs["coefficients"][which * m + k] for k in range(m)])


def unravel(index: Array, counts: Sequence[Any]) -> list[Array]:
    """Coordinates, row-major."""
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
    """carry = iteration(neighbour, carry) for each block that holds a position within the half-spans of a block."""
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
      logits: G * scale * terms, or as `span_mode` has it, in units of ln 2, far below any other where a key is not
        attended.
      factor: of the terms, in the logits.
      products: offset_i offset_j of each coefficient of ln G.
    """

    logits: Array
    factor: Any
    products: list[Any]


def logits_of(plan: Plan, memory: SharedMemory, span: Span, query: Sequence[Array], key: Sequence[Array], addend: Any):
    """The logits of a block of queries with a block of keys, given by their coordinates, whose operands are fetched."""
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
    if plan.multiply and plan.is_separable:  # a thread has few offsets along each dimension
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
    if masks:
        logits = jnp.where(reduce(operator.and_, masks), logits, jnp.asarray(scores.MASKED, warpgroup.dtype))
    if addend is not None:
        logits += warpgroup.spread(addend, PAIR, 1)
    return Logits(logits, factor, products)


def addend_of(plan: Plan, refs: dict[str, Any], example: Array, key: Sequence[Array]) -> jax.Array | None:
    """What is added to the logits of the keys of a block."""
    if not plan.addend_batch:
        return None
    example = example if plan.addend_batch > 1 else jnp.int32(0)
    return plan.warpgroup.load(refs["key_addend"], example * plan.blocks.count + ravel(key, plan.blocks.counts), 1)


def encoding_pages(plan: Plan, head: Array, query: Sequence[Array], key: Sequence[Array]) -> dict[str, Array]:
    """Where the band of two blocks is: its pages by their names."""
    step = [z - y + reach for y, z, reach in zip(query, key, plan.reach, strict=True)]
    first = (head * math.prod(plan.steps) + ravel(step, plan.steps)) * plan.blocks.chunks
    return {name: first + chunk for chunk, name in enumerate(plan.encodings)}
