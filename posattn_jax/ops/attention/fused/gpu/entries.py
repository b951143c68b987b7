"""The entries that each thread of a warpgroup holds of an array [64 64], a pair of blocks, in the compiler's terms.

Thread n holds rows 16 (n // 32) + (n % 32) // 4 + 8 r for r < 2. Of each row it holds two columns from 2 (n % 4) + 8 k
on, for k < 8. The numbers 8 r and 8 k, which all threads have in common, are stored separately from the rest. So the
compiler sees which numbers are equal, and which addresses differ by a constant.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from jax.experimental.mosaic import gpu as mgpu
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, llvm

from posattn_jax.ops.attention.fused.blocks import BLOCK

PAIR = (BLOCK, BLOCK)
LAYOUT = mgpu.WGMMA_LAYOUT
# The distance, in rows and in columns, from one entry of a thread to its next.
STEP = 8


@dataclasses.dataclass(frozen=True)
class Number:
    """A number of a thread: own + common.

    Operations on bits act on the two parts separately. That is correct because no bit of a row or a column is 1 in both
    parts. Such operations are not used on differences.
    """

    own: ir.Value
    common: int

    def _with(self, operation: Callable, other: Any) -> ir.Value:
        return operation(self.own, other.own if isinstance(other, Number) else constant(other))

    def __add__(self, other: "Number | int") -> "Number":
        if isinstance(other, int):
            return Number(self.own, self.common + other)
        return Number(self._with(arith.addi, other), self.common + other.common)

    __radd__ = __add__

    def __sub__(self, other: "Number | int") -> "Number":
        if isinstance(other, int):
            return Number(self.own, self.common - other)
        return Number(self._with(arith.subi, other), self.common - other.common)

    def __mul__(self, other: int) -> "Number":
        return Number(self._with(arith.muli, other), self.common * other)

    def __and__(self, other: int) -> "Number":
        return Number(self._with(arith.andi, other), self.common & other)

    def __rshift__(self, other: int) -> "Number":
        return Number(self._with(arith.shrui, other), self.common >> other)

    @property
    def value(self) -> ir.Value:
        return arith.addi(self.own, constant(self.common))


def constant(number: int) -> ir.Value:
    return mgpu.c(number, ir.IntegerType.get_signless(32))


def registers(columns: int = BLOCK) -> Iterator[tuple[tuple[int, ...], Number, Number]]:
    """For each register of a thread, which holds two entries of [64, columns]: its index, its row, its first column."""
    shape = LAYOUT.registers_shape((BLOCK, columns))
    assert math.prod(shape) == 2 * columns // STEP, shape
    first = next(iter(LAYOUT.thread_idxs((BLOCK, columns))))
    row, column = (arith.index_cast(ir.IntegerType.get_signless(32), index) for index in first)
    for n, at in enumerate(np.ndindex(shape)):
        yield at, Number(row, STEP * (n % 2)), Number(column, STEP * (n // 2))


def build(entry: Callable[[Number, Number], ir.Value], dtype: ir.Type) -> mgpu.FragmentedArray:
    """The array [64 64] of entry(row, column), which is called for every entry that a thread holds."""
    held = np.empty(LAYOUT.registers_shape(PAIR), object)
    for at, row, column in registers():
        two = llvm.mlir_undef(ir.VectorType.get((2,), dtype))
        for k in range(2):
            two = llvm.insertelement(two, entry(row, column + k), position=constant(k))
        held[at] = two
    return mgpu.FragmentedArray(_registers=held, _layout=LAYOUT, _is_signed=True if dtype == constant(0).type else None)


def pointer(buffer: ir.Value, row: Number, column: Number) -> ir.Value:
    """A pointer to an entry of a buffer in shared memory."""
    (stride, _), _ = ir.MemRefType(buffer.type).get_strides_and_offset()
    dtype, place = ir.MemRefType(buffer.type).element_type, row * stride + column
    own = mgpu.utils.getelementptr(mgpu.utils.memref_ptr(buffer), [place.own], dtype)
    return mgpu.utils.getelementptr(own, [place.common], dtype)
